"""The faults are tried in the simulator's small worlds."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "simulator"))
