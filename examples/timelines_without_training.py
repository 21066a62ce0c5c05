"""How k changes speed and staleness, seen on timelines alone, without training.

python examples/timelines_without_training.py

Twenty thousand clients, most of them quick, some of them very slow.
"""

import numpy as np

from kasync import timelines
from kasync.timelines import durations

CLIENTS, SECONDS = 20_000, 20.0
work = durations.log_normal(median=1.0, spread=0.5)
speeds = durations.log_normal(median=1.0, spread=0.7)  # a factor for each client, drawn once

print("     k   updates in 20 s   deliveries   staleness: mean   99 of 100 at most   clients heard of")
for k in (20, 200, 2_000):
    enough = 25 * CLIENTS // k  # steps, which last a little longer than twenty seconds
    timeline = timelines.clock(CLIENTS, k, enough, work, speeds=speeds)
    assert timeline.times[-1] > SECONDS
    timeline = timeline.head(int(np.searchsorted(timeline.times, SECONDS)))
    late, heard = timeline.staleness, (timeline.first_step >= 0).mean()
    print(
        f"{k:6,}   {timeline.steps:15,}   {late.size:10,}   {late.mean():15.1f}   {np.quantile(late, 0.99):17.0f}"
        f"   {heard:16.1%}"
    )

print("\nWhoever waits for more deliveries updates less often, on fresher work. In the long run the mean is")
print("clients / k - 1, whatever the durations: " + ", ".join(f"{CLIENTS / k - 1:.0f}" for k in (20, 200, 2_000)))
