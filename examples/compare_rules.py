"""Which rule suits my federation? Several of them on the same clients, the same arrivals and the same batches.

python examples/compare_rules.py
"""

import statistics

import kasync
from kasync import data, models, parts, rules, timelines

CLIENTS, K, STEPS = 300, 10, 400

digits = data.load("digits")
clients = data.federate(digits, data.partition.labels(2)(digits, clients=CLIENTS))
timeline = timelines.uniform(clients=CLIENTS, k=K, steps=STEPS, seed=1)

wkafl = rules.wkafl(lr=0.05, loss_threshold=0.2)
candidates = {
    "WKAFL": wkafl,
    "WKAFL, all gradients": wkafl.without(parts.SelectConsistent),  # an ablation is one word
    "FedBuff": rules.fedbuff(lr=0.1),
    "CA2FL": rules.ca2fl(lr=0.1, clients=CLIENTS),
    "K-async SGD": rules.kasync_sgd(lr=0.1),
}

print(f"{CLIENTS} clients with two labels each, k = {K}, {STEPS} steps, one seed: no ranking, a first look")
for name, rule in candidates.items():
    run = kasync.simulate(models.mlp(784, 64), clients, rule, timeline, kasync.Gradient(8), evaluate_every=20)
    accuracies = [record.accuracy for record in run if record.accuracy is not None]
    last = accuracies[-10:]
    print(f"{name:22} accuracy {statistics.mean(last):.3f}   spread {statistics.pstdev(last):.3f}")
