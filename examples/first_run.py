"""A first asynchronous run: 300 clients with one label each, ten deliveries per step.

python examples/first_run.py
"""

import kasync
from kasync import data, models, rules, timelines

# Who holds what: 5,000 real digits that need no download, one label per client (Algorithm 4 of the paper).
digits = data.load("digits")
clients = data.federate(digits, data.partition.labels(1)(digits, clients=300))

# Who delivers when: every client takes its own time, and some are much slower than others.
durations = timelines.durations.log_normal(median=1.0, spread=0.8)
timeline = timelines.clock(clients=300, k=10, steps=600, durations=durations)

# What the server does with ten deliveries, and what a client brings: the gradient of one mini-batch.
rule = rules.wkafl(lr=0.05, loss_threshold=0.2)
work = kasync.Gradient(batch_size=8)

print(timeline.summary())
print()
print("  step   seconds   staleness   accuracy")
for record in kasync.simulate(models.mlp(784, 64), clients, rule, timeline, work, evaluate_every=100):
    if record.accuracy is not None:
        staleness = record.staleness.mean()
        print(f"{record.step:6}   {record.time:7.1f}   {staleness:9.1f}   {record.accuracy:8.3f}")
