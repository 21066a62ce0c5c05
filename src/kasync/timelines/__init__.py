"""Timelines: who delivers at which server step, from which model version, when; and the fleets behind them."""

from kasync.timelines import durations, traces
from kasync.timelines.availability import Dropouts, Intervals, Repeating
from kasync.timelines.clock import WorkShare, clock, from_trace
from kasync.timelines.selection import Known
from kasync.timelines.timeline import Summary, Timeline, held_staleness, load, save, staleness_bound
from kasync.timelines.traces import Traces, from_traces, phones
from kasync.timelines.uniform import once_per_round, uniform

__all__ = [
    "Dropouts",
    "Intervals",
    "Known",
    "Repeating",
    "Summary",
    "Timeline",
    "Traces",
    "WorkShare",
    "clock",
    "durations",
    "from_trace",
    "from_traces",
    "held_staleness",
    "load",
    "once_per_round",
    "phones",
    "save",
    "staleness_bound",
    "traces",
    "uniform",
]
