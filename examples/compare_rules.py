"""Several rules on the same clients, the same arrivals and the same batches, with three seeds of each.

python examples/compare_rules.py
"""

import kasync
from kasync import data, models, parts, rules, timelines

CLIENTS, K, STEPS = 300, 10, 300

digits = data.load("digits")
clients = data.federate(digits, data.partition.labels(2)(digits, clients=CLIENTS))

wkafl = rules.wkafl(lr=0.05, loss_threshold=0.2)
candidates = {
    "WKAFL": wkafl,
    "WKAFL, all gradients": wkafl.without(parts.SelectConsistent),  # an ablation is one word
    "FedBuff": rules.fedbuff(lr=0.1),
    "CA2FL": rules.ca2fl(lr=0.1, clients=CLIENTS),
    "K-async SGD": rules.kasync_sgd(lr=0.1),
}
found = kasync.compare(
    lambda seed: models.mlp(784, 64, seed=seed),
    clients,
    candidates,
    lambda seed: timelines.uniform(clients=CLIENTS, k=K, steps=STEPS, seed=seed),
    seeds=3,
    evaluate_every=20,
)
print(found.table.to_string(float_format="{:.3f}".format))
print(found.verdict)
