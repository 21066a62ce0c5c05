"""Which pictures of an experiment go into a paper? Each a figure that `save` writes as PNG and PDF."""

from kasync.report.figures.draw import figures_of, save

__all__ = ["figures_of", "save"]
