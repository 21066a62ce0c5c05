"""The command line: every command is a thin layer over a function of the package."""

from __future__ import annotations

import errno
import os
import sys

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def main() -> None:
    """The program `kasync`: exit code 0 done, 1 failed, 2 asked for something that cannot be, 130 interrupted."""
    try:
        from kasync.cli.app import app
    except ImportError as problem:
        if problem.name not in ("typer", "rich", "click"):
            raise
        print("kasync: the command line needs typer and rich: pip install 'kasync[cli]'.", file=sys.stderr)
        sys.exit(1)
    from kasync.errors import UserError

    try:
        app(prog_name="kasync")
    except UserError as problem:
        if os.environ.get("KASYNC_TRACEBACK"):
            raise
        print(f"kasync: {problem}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("kasync: this needs more memory than there is: ask for fewer clients or steps.", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `kasync rules | head` is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as problem:
        if problem.errno not in CANNOT_WRITE or os.environ.get("KASYNC_TRACEBACK"):
            raise
        what = problem.filename or "a file"
        print(f"kasync: {what} cannot be written ({problem.strerror}): make room or choose another.", file=sys.stderr)
        sys.exit(2)
