"""Does the paper hold up? Experiments as data, runs that survive being killed, grids, tuning; `report` only reads."""
