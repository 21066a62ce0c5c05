"""Experiments as data: runs that survive being killed, grids, tuning; `report` only reads what they leave."""
