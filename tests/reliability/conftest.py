"""What do the attacks use of other tests? The simulator's small worlds, the official data files, the live engines."""

import sys
from pathlib import Path

for other in ("data", "simulator", "live", "rules"):
    sys.path.append(str(Path(__file__).parents[1] / other))
