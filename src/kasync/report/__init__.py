"""What came out of it all? Tables, figures and one page, from results that are only read.

kasync.report.write("results")      # report.md, CSV, figures and report.html in results/report
kasync.report.serve("results")      # the same page at http://127.0.0.1:8765 while runs go on
"""

from kasync.report.results import read
from kasync.report.serving import serve
from kasync.report.writing import Written, write

__all__ = ["Written", "read", "serve", "write"]
