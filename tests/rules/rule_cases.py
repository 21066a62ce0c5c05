"""Which rules are tested, with which settings, and by which plain loop each is judged.

A rule that is missing here fails the tests.
"""

from __future__ import annotations

from math import inf

import plain_distrusting as distrusting
import plain_newer as newer
import plain_remembering as remembering
import plain_weighing as weighing
import pytest
import torch
from deliveries import CLIENTS, LAYERS, LENGTH, deliver, drawn_gradient, generator, own_gradient
from plain_wkafl import PlainWkafl

from kasync import Rule, ServerState, discounts, rules

WKAFL = {
    "lr": 0.1,
    "momentum": 0.1,
    "max_norm": 5.0,
    "sharpness": 10.0,
    "threshold": 0.3,
    "ratio": 1.0,
    "loss_threshold": 0.7,
    "lr_decay": 0.1,
}
ZENO = {"lr": 0.1, "server_gradient": own_gradient, "scale": 0.1, "penalty": 0.02, "slack": 0.1}
FADAS = {"lr": 0.5, "patience": 3.0, "betas": (0.9, 0.99), "eps": 1e-8}

CASES = {  # name: rule, its settings, the plain loop
    "wkafl": ("wkafl", WKAFL, PlainWkafl(**WKAFL)),
    "wkafl_as_coded": (
        "wkafl_as_coded",
        {name: value for name, value in WKAFL.items() if name not in ("ratio", "loss_threshold")},
        PlainWkafl(**WKAFL, remember="aggregate", as_coded=True),
    ),
    "kasync_sgd": ("kasync_sgd", {"lr": 0.1}, weighing.kasync_sgd(0.1)),
    "twafl": ("twafl", {"lr": 0.1}, weighing.twafl(0.1)),
    "twafl as printed": ("twafl", {"lr": 0.1, "normalize": False}, weighing.twafl(0.1, normalize=False)),
    "sasgd": ("sasgd", {"lr": 0.1}, weighing.sasgd(0.1)),
    "fedbuff": ("fedbuff", {"lr": 0.1}, weighing.fedbuff(0.1)),
    "fedbuff, another power": ("fedbuff", {"lr": 0.1, "power": 2.0}, weighing.fedbuff(0.1, 2.0)),
    "delay_adaptive": ("delay_adaptive", {"lr": 0.1, "concurrency": 3.0}, weighing.delay_adaptive(0.1, 3.0)),
    "ringmaster": ("ringmaster", {"lr": 0.1, "max_staleness": 5}, newer.Ringmaster(0.1, 5)),
    "fedasync": ("fedasync", {"mixing": 0.6}, weighing.FedAsync(0.6, weighing.polynomial)),
    "fedasync, hinge": (
        "fedasync",
        {"mixing": 0.6, "discount": discounts.Hinge(10, 4)},
        weighing.FedAsync(0.6, weighing.hinge),
    ),
    "fedasync, no discount": (
        "fedasync",
        {"mixing": 0.6, "discount": discounts.NoDiscount()},
        weighing.FedAsync(0.6, lambda tau: 1.0),
    ),
    "fadas": ("fadas", FADAS, weighing.Fadas(**FADAS)),
    "fadas, scaled": ("fadas", FADAS | {"scaled": True}, weighing.Fadas(**FADAS, scaled=True)),
    "fedstale": ("fedstale", {"lr": 0.1, "clients": CLIENTS, "trust": 0.3}, newer.FedStale(0.1, CLIENTS, 0.3)),
    "area": ("area", {"clients": CLIENTS}, newer.Area(CLIENTS)),
    "fedfa": ("fedfa", {"queue": 60}, newer.FedFa(60)),
    "rescaled_asgd": ("rescaled_asgd", {"lr": 0.1, "clients": CLIENTS}, newer.RescaledAsgd(0.1)),
    "asyncfeded": ("asyncfeded", {"lr": 0.1, "softness": 0.5}, newer.AsyncFedEd(0.1, 0.5)),
    "port": ("port", {"lr": 0.1}, newer.Port(0.1)),
    "gap_aware": ("gap_aware", {"lr": 0.1, "decay": 0.9}, newer.GapAware(0.1, 0.9)),
    "dc_asgd": ("dc_asgd", {"lr": 0.1}, newer.DcAsgd(0.1)),
    "dc_asgd, adaptive": (
        "dc_asgd",
        {"lr": 0.1, "compensation": 2.0, "decay": 0.95},
        newer.DcAsgd(0.1, 2.0, 0.95),
    ),
    "momentum_approximation": (
        "momentum_approximation",
        {"lr": 0.1, "power": 0.5},
        newer.MomentumApproximation(0.1, power=0.5),
    ),
    "momentum_look_ahead": ("momentum_look_ahead", {"lr": 0.1}, newer.MomentumLookAhead(0.1)),
    "momentum_look_ahead, from ahead": (
        "momentum_look_ahead",
        {"lr": 0.1, "momentum": 0.7, "ahead": True},
        newer.MomentumLookAhead(0.1, 0.7, ahead=True),
    ),
    "heloco": ("heloco", {"lr": 0.1}, newer.HeLoCo(0.1, LAYERS)),
    "heloco, weighted": (
        "heloco",
        {"lr": 0.1, "weight": 0.25, "stiffness": 1.0, "ahead": False},
        newer.HeLoCo(0.1, LAYERS, rho=0.25, kappa=1.0, ahead=False),
    ),
    "delayed_nesterov": ("delayed_nesterov", {"lr": 0.1, "every": 3}, newer.DelayedNesterov(0.1, n=3)),
    "delayed_nesterov, shared": (
        "delayed_nesterov",
        {"lr": 0.1, "every": 3, "share": 0.2},
        newer.DelayedNesterov(0.1, n=3, c=0.2),
    ),
    "fedavgm": ("fedavgm", {"lr": 0.1}, newer.FedAvgM(0.1)),
    "fedadam": ("fedadam", {"lr": 0.1}, newer.FedAdam(0.1, (0.9, 0.99), 1e-3)),
    "fedyogi": ("fedyogi", {"lr": 0.1}, newer.FedAdam(0.1, (0.9, 0.99), 1e-3, yogi=True)),
    "ringmaster_lmo": (
        "ringmaster_lmo",
        {"lr": 0.1, "max_staleness": 5},
        newer.Ringmaster(0.1, 5, 0.95, LAYERS),
    ),
    "gsgm": ("gsgm", {"lr": 0.1, "momentum": 0.5, "clients": 12}, remembering.Gsgm(0.1, 0.5, 12)),
    "gsgm, clients left over": ("gsgm", {"lr": 0.1, "momentum": 0.5, "clients": 18}, remembering.Gsgm(0.1, 0.5, 18)),
    "ca2fl": ("ca2fl", {"lr": 0.1, "clients": CLIENTS}, remembering.Ca2fl(0.1, CLIENTS)),
    "ace": ("ace", {"lr": 0.1, "clients": CLIENTS}, remembering.Ace(0.1, CLIENTS)),
    "aced": ("ace", {"lr": 0.1, "clients": CLIENTS, "max_staleness": 6}, remembering.Ace(0.1, CLIENTS, 6)),
    "recall": ("recall", {"lr": 0.1, "clients": CLIENTS}, remembering.Recall(0.1, CLIENTS)),
    "recall, long and evenly": (
        "recall",
        {"lr": 0.1, "clients": CLIENTS, "half_distance": 0.5, "power": 0.0, "reach": inf},
        remembering.Recall(0.1, CLIENTS, half_distance=0.5, power=0.0, reach=inf),
    ),
    "recall, measured": (
        "recall",
        {"lr": 0.1, "clients": CLIENTS, "half_distance": 0.5, "measured": True},
        remembering.Recall(0.1, CLIENTS, half_distance=0.5, measured=True),
    ),
    "ringleader": ("ringleader", {"lr": 0.1, "clients": CLIENTS}, remembering.Ringleader(0.1, CLIENTS)),
    "centered_clip": ("centered_clip", {"lr": 0.1, "radius": 2.0}, remembering.CenteredClip(0.1, 2.0)),
    "centered_clip, thrice": (
        "centered_clip",
        {"lr": 0.1, "radius": 2.0, "iterations": 3},
        remembering.CenteredClip(0.1, 2.0, 3),
    ),
    "zeno": ("zeno", ZENO | {"refresh_every": 3}, distrusting.Zeno(**ZENO, refresh_every=3)),
    "zeno, always fresh": ("zeno", ZENO | {"refresh_every": 1}, distrusting.Zeno(**ZENO, refresh_every=1)),
    "zeno, other samples in every step": (
        "zeno",
        ZENO | {"server_gradient": drawn_gradient, "refresh_every": 2},
        distrusting.DrawingZeno(**ZENO | {"server_gradient": drawn_gradient}, refresh_every=2),
    ),
    "krum": ("krum", {"lr": 0.1, "byzantine": 1}, distrusting.Krum(0.1, 1)),
    "geometric_median": ("geometric_median", {"lr": 0.1}, distrusting.GeometricMedian(0.1)),
    "fltrust": ("fltrust", {"lr": 0.1, "server_gradient": own_gradient}, distrusting.FlTrust(0.1, own_gradient)),
    "aflguard": (
        "aflguard",
        {"lr": 0.1, "server_gradient": own_gradient, "radius": 1.1},
        distrusting.AflGuard(0.1, own_gradient, 1.1),
    ),
}


def make(case: str, **more) -> Rule:
    """The rule of this case, with more settings if wanted."""
    name, settings, _ = CASES[case]
    return rules.RULES[name](**settings, **more).shaped(LAYERS)


every_rule = pytest.mark.parametrize("case", CASES)


def started(rule: Rule, steps: int = 3, dtype: torch.dtype = torch.float64, seed: int = 1) -> ServerState:
    """A server that has a past."""
    random = generator(seed)
    server = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64).to(dtype))
    for _ in range(steps):
        server, _ = rule(server, deliver(random, dtype=dtype))
    return server


def equal(one: ServerState, other: ServerState, **tolerance: float) -> None:
    """Fail unless both states hold the same names and numbers, to the last bit unless a tolerance is given."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance or {"rtol": 0, "atol": 0}, msg=name)
