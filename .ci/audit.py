"""Asks pip-audit for known faults in the versions of the lock; what it could not ask about counts as a failure."""

import subprocess
import sys
from pathlib import Path

AUDITOR = Path(sys.executable).parents[1] / "audit" / "bin" / "pip-audit"
UNREACHED = ("could not be audited", "Failed to resolve", "Max retries", "ConnectionError", "timed out")


def main(lock: str) -> int:
    words = [AUDITOR, "--requirement", lock, "--no-deps", "--disable-pip", "--strict", "--progress-spinner", "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if any(sign in done.stdout + done.stderr for sign in UNREACHED):
        print(f"The database of known faults cannot be reached from here, so nothing is known about {lock}.")
        return 1
    print(done.stdout or done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
