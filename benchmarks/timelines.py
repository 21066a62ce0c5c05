"""Time and memory of a timeline of a million clients: `python benchmarks/timelines.py [--quick]`.

Each case runs in a process of its own, so that its peak memory is its own. The plain heap loop, the textbook way, does
the work of the clock with exponential durations at a smaller scale, with random numbers from the standard library.
Seconds are processor seconds: one thread does it all and waits for nothing, and other programs do not count.
"""

import argparse
import heapq
import multiprocessing
import random
import resource
import sys
import time

from kasync import timelines
from kasync.timelines import durations

BUDGET_SECONDS, BUDGET_GIGABYTES = 60.0, 4.0


def uniform(clients: int, k: int, steps: int) -> str:
    """The paper's arrivals, with everything derived from them."""
    timeline = timelines.uniform(clients, k, steps, seed=0)
    return _derived(timeline)


def clock_exponential(clients: int, k: int, steps: int) -> str:
    """K-async, exponential durations."""
    return _derived(timelines.clock(clients, k, steps, durations.exponential(1.0), seed=0))


def clock_log_normal(clients: int, k: int, steps: int) -> str:
    """K-async, log-normal durations, a speed of its own for each client."""
    speeds = durations.log_normal(1.0, 0.5)
    return _derived(timelines.clock(clients, k, steps, durations.log_normal(1.0, 0.5), seed=0, speeds=speeds))


def clock_constant(clients: int, k: int, steps: int) -> str:
    """K-async, everybody at the same moment: ties everywhere."""
    return _derived(timelines.clock(clients, k, steps, durations.constant(1.0), seed=0))


def clock_unreliable(clients: int, k: int, steps: int) -> str:
    """K-async with lost uploads, absences and windows."""
    timeline = timelines.clock(
        clients,
        k,
        steps,
        durations.exponential(1.0),
        seed=0,
        availability=timelines.Repeating(16.0, 24.0),
        dropouts=timelines.Dropouts(0.02, durations.exponential(10.0)),
        lost=0.02,
    )
    return _derived(timeline)


def concurrency_arrival(clients: int, k: int, steps: int) -> str:
    """A tenth of the clients at work, each replaced when it is done, by anybody."""
    return _derived(timelines.clock(clients, k, steps, durations.exponential(1.0), 0, concurrency=clients // 10))


def concurrency_update(clients: int, k: int, steps: int) -> str:
    """A tenth of the clients at work, the least heard first, replaced after the update."""
    options = {"concurrency": clients // 10, "restart": "update", "select": "least_heard"}
    return _derived(timelines.clock(clients, k, steps, durations.ace(), seed=0, **options))


def rounds(clients: int, k: int, steps: int) -> str:
    """Once per round (GSGM)."""
    return _derived(timelines.once_per_round(clients, k, steps, seed=0))


def heap_loop(clients: int, k: int, steps: int) -> str:
    """The textbook event loop, clients and versions only."""
    draw = random.Random(0).expovariate
    heap = [(draw(1.0), client) for client in range(clients)]
    heapq.heapify(heap)
    version, staleness = [0] * clients, 0
    for step in range(steps):
        first = [heapq.heappop(heap) for _ in range(k)]
        now = first[-1][0]
        for _, client in first:
            staleness += step - version[client]
            version[client] = step + 1
            heapq.heappush(heap, (now + draw(1.0), client))
    return f"mean staleness {staleness / (steps * k):,.1f}"


def _derived(timeline: timelines.Timeline) -> str:
    summary = timeline.summary()
    _ = timeline.visits, timeline.next_step, timeline.first_step
    return f"mean staleness {summary.mean_staleness:,.1f}, versions held {summary.versions_held:,}"


def _measured(case, size, answers) -> None:
    start = time.process_time()
    said = case(*size)
    seconds = time.process_time() - start
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    answers.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, said))


def measure(case, size: tuple[int, int, int]) -> tuple[float, float, str]:
    """(seconds, peak gigabytes, what it found), from a fresh process."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_measured, args=(case, size, answers))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{case.__name__} failed with exit code {process.exitcode}")
    return answers.get()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the clients and of the steps")
    quick = parser.parse_args().quick
    full = (100_000, 1000, 1000) if quick else (1_000_000, 1000, 10_000)
    small = (100_000, 1000, 1000)
    cases = [
        (case, full)
        for case in (
            uniform,
            clock_exponential,
            clock_log_normal,
            clock_constant,
            clock_unreliable,
            concurrency_arrival,
            concurrency_update,
            rounds,
        )
    ]
    cases += [(clock_exponential, small), (heap_loop, small)]
    print(f"{'case':20} {'clients':>9} {'k':>5} {'steps':>6} {'seconds':>8} {'GB':>5} {'deliveries/s':>13}")
    over, rates = [], {}
    for case, size in cases:
        seconds, gigabytes, said = measure(case, size)
        clients, k, steps = size
        rates[case, size] = k * steps / seconds
        row = f"{case.__name__:20} {clients:9,} {k:5,} {steps:6,} {seconds:8.2f} {gigabytes:5.2f}"
        print(f"{row} {rates[case, size]:13,.0f}   {said}", flush=True)
        if seconds > BUDGET_SECONDS or gigabytes > BUDGET_GIGABYTES:
            over.append(case.__name__)
    ratio = rates[clock_exponential, small] / rates[heap_loop, small]
    print(f"the clock is {ratio:.1f} times as fast as the plain heap loop on the same size")
    kept = f"over in {', '.join(over)}" if over else "kept"
    print(f"budget {BUDGET_SECONDS:.0f} s and {BUDGET_GIGABYTES:.0f} GB: {kept}")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
