"""Who delivers at which server step, from which model version, at what virtual time?"""

from kasync.timelines.timeline import Timeline
from kasync.timelines.uniform import uniform

__all__ = ["Timeline", "uniform"]
