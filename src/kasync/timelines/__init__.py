"""Who delivers at which server step, from which model version, at what virtual time?"""

from kasync.timelines import durations
from kasync.timelines.clock import clock, from_trace
from kasync.timelines.files import load, save
from kasync.timelines.held import held_staleness, staleness_bound
from kasync.timelines.presence import Dropouts, Intervals, Repeating
from kasync.timelines.rounds import once_per_round
from kasync.timelines.summary import Summary
from kasync.timelines.timeline import Timeline
from kasync.timelines.uniform import uniform

__all__ = [
    "Dropouts",
    "Intervals",
    "Repeating",
    "Summary",
    "Timeline",
    "clock",
    "durations",
    "from_trace",
    "held_staleness",
    "load",
    "once_per_round",
    "save",
    "staleness_bound",
    "uniform",
]
