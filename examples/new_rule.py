"""A rule of your own: a part with one formula, and a name for the composition.

    python examples/new_rule.py

The rule below cares for clients that are badly off: the higher a client's loss, the more its gradient weighs. It is
tried on nine clients that agree and one that wants something else.
"""

from dataclasses import dataclass

import torch

from kasync import Arrivals, Part, Rule, ServerState, Step, parts, timelines


@dataclass(frozen=True)
class FavourTheStruggling(Part):
    """weights ~ exp(favour * loss_i)"""

    favour: float

    def __call__(self, step: Step) -> Step:
        excess = step.losses - step.largest(step.losses)  # the ratio is the same and nothing overflows
        return step.weighed(step.averaged((self.favour * excess).exp()))


def fair(lr: float, favour: float = 2.0) -> Rule:
    return Rule("fair", lr, (parts.ClipNorms(10.0), FavourTheStruggling(favour), parts.SlowWhenAllStale(0.1)))


# That was all. The rest is a problem to try it on: client i has the loss |w - wish_i|^2 / 2.
WISHES = torch.tensor([[0.0, 0.0]] * 9 + [[3.0, 4.0]])  # [clients, D]


def losses_at(params: torch.Tensor) -> torch.Tensor:
    """[clients]"""
    return (params - WISHES).square().sum(1) / 2


def train(rule: Rule) -> torch.Tensor:
    """[clients] losses after 300 steps with five of the ten clients at a time."""
    arrivals = timelines.uniform(clients=len(WISHES), k=5, steps=300)
    server = ServerState.initial(torch.ones(2))
    versions = [server.params]
    for who, began in zip(arrivals.clients.tolist(), arrivals.versions.tolist(), strict=True):
        models = torch.stack([versions[version] for version in began])  # [k, D]
        gradients = models - WISHES[who]
        losses = gradients.square().sum(1) / 2
        server, _ = rule(server, Arrivals(gradients, [int(server.step) - version for version in began], losses))
        versions.append(server.params)
    return losses_at(server.params)


if __name__ == "__main__":
    for rule in (Rule("mean", 0.05, ()), fair(0.05)):
        losses = train(rule)
        print(f"{rule.name:5}  worst client's loss {losses.max():6.3f}   mean loss {losses.mean():6.3f}")
