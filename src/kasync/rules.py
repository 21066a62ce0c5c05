"""The rules by name: each a short composition of parts, with its formula, its paper and the facts about it.

Every rule also takes `optimizer` (any class of torch.optim, applied to the direction) and `schedule` (see
kasync.schedules). g_i is a delivered gradient (or start minus trained model), s_i its staleness, K their number.

A rule of your own is named `module:function` wherever a name is asked for, or by its own name once `register` knows it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import torch

from kasync import checks, components, discounts, optimizers, parts
from kasync.core import Rule
from kasync.errors import unknown
from kasync.optimizers import OptimizerFactory
from kasync.parts.trust import ServerGradient
from kasync.schedules import Schedule

Maker = Callable[..., Rule]
M = TypeVar("M", bound=Maker)
Need = Literal["staleness", "losses", "batch_sizes", "clients", "starts", "server_gradient"]
COMMON = ("optimizer", "schedule")  # settings that every rule has
APART = frozenset({"starts", "server_gradient"})  # needs that runs stacked by torch.vmap cannot meet

RULES: dict[str, Maker] = {}
_FACTS: dict[Maker, Facts] = {}


@dataclass(frozen=True)
class Facts:
    """What is known of a rule beside its formula."""

    name: str
    make: Maker
    title: str
    rate: str = "lr"  # the setting that scales its step
    rate_most: float = math.inf
    start: float | None = None  # a rate to begin with; None: that of K-async SGD
    knob: str | None = None  # the one setting to tune beside the rate,
    grid: tuple[float, ...] = ()  # and the values to try
    needs: frozenset[Need] | None = None  # what it reads of a delivery, beside the gradient; None: not known
    from_run: Mapping[str, Callable[[int, int], float]] = field(default_factory=dict)  # settings by (clients, k)
    arrivals: str | None = None  # the kind of timeline it wants in the place of a uniform one
    place: int | None = None  # its colour and marker among the eight of the report

    @property
    def formula(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0].rstrip(".")

    @property
    def paper(self) -> str:
        """The first paragraph below the formula."""
        return " ".join((inspect.getdoc(self.make) or "").partition("\n")[2].strip().partition("\n\n")[0].split())

    @property
    def notes(self) -> str:
        """What the docstring says further down."""
        rest = (inspect.getdoc(self.make) or "").partition("\n")[2].strip().partition("\n\n")[2]
        return " ".join(rest.split())

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Its own settings, without those that every rule has."""
        known = inspect.signature(self.make).parameters
        return {name: each for name, each in known.items() if name not in COMMON}

    @property
    def stackable(self) -> bool:
        """Whether runs of it can share their steps: it needs nothing but what arrives."""
        return self.needs is not None and not self.needs & APART

    def settings_of_run(self, clients: int, k: int) -> dict[str, float]:
        """The settings that follow from how many clients there are and how many deliver at a time."""
        known = {name: value(clients, k) for name, value in self.from_run.items()}
        return known | ({"clients": clients} if "clients" in self.settings else {})


def register(
    title: str,
    *,
    needs: tuple[Need, ...] | None = None,
    rate: str = "lr",
    rate_most: float = math.inf,
    start: float | None = None,
    knob: str | None = None,
    grid: tuple[float, ...] = (),
    from_run: Mapping[str, Callable[[int, int], float]] | None = None,
    arrivals: str | None = None,
    place: int | None = None,
) -> Callable[[M], M]:
    """Enter a function that makes a rule under its own name, with what is known of it; the function stays as it is."""

    def entered(make: M) -> M:
        name = make.__name__
        if name in RULES and inspect.unwrap(RULES[name]).__module__ != make.__module__:
            raise ValueError(f"a rule {name!r} exists in {RULES[name].__module__}: give yours another name")
        settings = inspect.signature(make).parameters
        for setting in (rate, *([knob] if knob else []), *(from_run or {})):
            if setting not in settings:
                raise unknown(f"setting of {name}", setting, settings)
        for need in needs or ():
            if need not in get_args(Need):
                raise unknown(f"need of {name}", need, get_args(Need))
        wants = None if needs is None else frozenset(needs)
        RULES[name] = make
        _FACTS[make] = Facts(
            name,
            make,
            title,
            rate=rate,
            rate_most=rate_most,
            start=start,
            knob=knob,
            grid=tuple(grid),
            needs=wants,
            from_run=from_run or {},
            arrivals=arrivals,
            place=place,
        )
        return make

    return entered


def find(name: str) -> Maker:
    """The function that makes the rule of this name: one of ours, a registered one, or `module:function`."""
    if name in RULES:
        return RULES[name]
    if ":" not in name:
        raise unknown("rule", name, RULES)
    found: Maker = components.load(name, "rule")
    return found


def facts(rule: str | Maker) -> Facts:
    """What is known of the rule of this name, or of the one that this function makes."""
    make = find(rule) if isinstance(rule, str) else rule
    if make in _FACTS:
        return _FACTS[make]
    settings = inspect.signature(make).parameters
    rate = "lr" if "lr" in settings else next(iter(settings), "lr")
    own = getattr(make, "__name__", type(make).__name__)
    return Facts(rule if isinstance(rule, str) else own, make, own.replace("_", " "), rate)


def build(name: str, **settings: Any) -> Rule:
    """The rule of this name; a setting it does not have is an error that names the nearest one."""
    make = find(name)
    known = inspect.signature(make).parameters
    for setting in settings:
        if setting not in known and setting not in COMMON:
            raise unknown(f"setting of {name}", setting, [*known, *COMMON])
    missing = [p for p in known if known[p].default is inspect.Parameter.empty and p not in settings]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: give a value")
    late = {key: settings.pop(key) for key in COMMON if key in settings and key not in known}
    rule = make(**settings)
    if not isinstance(rule, Rule):
        raise ValueError(f"{name} made a {type(rule).__name__}: a rule's function must return a kasync.Rule")
    return replace(rule, **{key: value for key, value in late.items() if value is not None})


def _average_staleness(clients: int, k: int) -> float:
    return clients / k


def _queue(clients: int, k: int) -> int:
    return k


@register("WKAFL", needs=("staleness", "losses"), knob="threshold", grid=(-1.0, 0.0, 0.3, 0.6), place=0)
def wkafl(
    lr: float,
    momentum: float = 0.1,
    max_norm: float = 100.0,
    sharpness: float = 10.0,
    threshold: float = 0.3,
    ratio: float = 10.0,
    loss_threshold: float = 0.1,
    lr_decay: float = 0.1,
    remember: str = "estimate",
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/(lr_decay min s + 1) sum p_i g_i,  p_i ~ exp(sharpness cos(g_i, estimate)) above the threshold.

    Zhou, Li, Ren, Yang: Towards Efficient and Stable K-Asynchronous Federated Learning with Unbounded Stale Gradients
    on Non-IID Data (2022), Algorithms 1-3.

    In the paper's letters, in order: eta_0, alpha, CB, beta, sim_min, B, epsilon, gamma.
    """
    return Rule(
        "wkafl",
        lr,
        (
            parts.AddMomentum(momentum, remember),
            parts.ClipNorms(max_norm),
            parts.EstimateByStaleness(),
            parts.EnterStageTwo(loss_threshold),
            parts.ClipToEstimate(ratio),  # before the selection, whose similarities a rescaling does not change
            parts.SelectConsistent(sharpness, threshold),
            parts.SlowWhenAllStale(lr_decay),
        ),
        optimizer,
        schedule,
    )


@register("WKAFL as coded", needs=("staleness",))
def wkafl_as_coded(
    lr: float,
    momentum: float = 0.1,
    max_norm: float = 100.0,
    sharpness: float = 10.0,
    threshold: float = 0.3,
    lr_decay: float = 0.1,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/(lr_decay (1 + min s) + 1) sum p_i g_i,  p_i ~ (e/2)^(-s_i) exp(sharpness cos(g_i, estimate))

    Zhou, Li, Ren, Yang: what their public code for EMNIST MNIST and CIFAR10 computes where it differs from their paper
    (2022).

    Next to `wkafl`: the selection's weights are also those of staleness, stage two is never reached, staleness counts
    from 1, and the aggregate is remembered. With `staleness="published-code"` its clients are aliased as well.
    """
    return Rule(
        "wkafl_as_coded",
        lr,
        (
            parts.AddMomentum(momentum, "aggregate"),
            parts.ClipNorms(max_norm),
            parts.EstimateByStaleness(),
            parts.SelectConsistent(sharpness, threshold, base=math.e / 2),
            parts.SlowWhenAllStale(lr_decay, first=1.0),
        ),
        optimizer,
        schedule,
    )


@register("K-async SGD", needs=(), place=4)
def kasync_sgd(
    lr: float,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum g_i

    Dutta et al.: Slow and Stale Gradients Can Win the Race (2018); Eq. 2 of the WKAFL paper.
    """
    return Rule("kasync_sgd", lr, (), optimizer, schedule)


@register("TWAFL", needs=("staleness", "batch_sizes"), place=1)
def twafl(
    lr: float,
    normalize: bool = True,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr sum a_i g_i,  a_i ~ m_i (e/2)^(-s_i)

    Chen, Sun, Jin: Communication-Efficient Federated Deep Learning with Asynchronous Model Update and Temporally
    Weighted Aggregation (2019), as modified by the WKAFL paper.

    As printed the weights do not sum to one and the step all but vanishes when everything is stale (normalize=False);
    its authors' code divides by their sum.
    """
    return Rule("twafl", lr, (parts.WeighByStaleness(normalize=normalize),), optimizer, schedule)


@register("SASGD", needs=("staleness",), place=2)
def sasgd(
    lr: float,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - 1/K sum lr/max(s_i, 1) g_i

    Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD for Distributed Deep Learning (2016).
    """
    return Rule("sasgd", lr, (parts.DiscountStaleness(discounts.Inverse(1.0)),), optimizer, schedule)


@register(
    "GSGM",
    needs=(),
    knob="momentum",
    grid=(0.0, 0.1, 0.5, 0.9),
    from_run={"momentum": lambda clients, k: 0.1},  # the paper's alpha
    arrivals="once_per_round",
    place=3,
)
def gsgm(
    lr: float,
    momentum: float,
    clients: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (1/K sum g_i + momentum M),  M the mean of the corrected gradients of the last round

    Li et al.: Gradient Scheduling with Global Momentum for Non-IID Data Distributed Asynchronous Training (2019), K at
    a time.

    Wants timelines.once_per_round: each client delivers once in a round.
    """
    return Rule("gsgm", lr, (parts.AddRoundMomentum(momentum),), optimizer, schedule, clients=clients)


@register("Zeno++", needs=("server_gradient",), knob="penalty", grid=(0.0, 0.002, 0.02, 0.2))
def zeno(
    lr: float,
    server_gradient: ServerGradient,
    scale: float = 0.1,
    penalty: float = 0.02,
    slack: float = 0.1,
    refresh_every: int = 5,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr g |v|/|g|  if  scale <v, g> - penalty |g|^2 >= -scale slack,  v the server's own gradient

    Xie, Koyejo, Gupta: Zeno++ (2020).

    In the letters of the WKAFL paper's Appendix A: gamma, rho, epsilon and k. v is made anew before every candidate
    while the number of accepted ones is a multiple of refresh_every, as the WKAFL authors' code has it.
    """
    accept = parts.AcceptByScore(server_gradient, scale, penalty, slack, refresh_every)
    return Rule("zeno", lr, (accept,), optimizer, schedule)


@register("FedAsync", needs=("staleness", "starts"), rate="mixing", rate_most=1.0, start=0.6)
def fedasync(
    mixing: float,
    discount: discounts.Discount = discounts.Polynomial(0.5),  # noqa: B008 (frozen)
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w + 1/K sum mixing discount(s_i) (w_i - w),  w_i the client's trained model

    Xie, Koyejo, Gupta: Asynchronous Federated Optimization (2019).

    Discounts: NoDiscount, Polynomial, Hinge.
    """
    return Rule("fedasync", 1.0, (parts.MixModels(mixing, discount),), optimizer, schedule)


@register("FedBuff", needs=("staleness",), knob="power", grid=(0.0, 0.5, 1.0, 2.0), place=5)
def fedbuff(
    lr: float,
    power: float = 0.5,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum (1 + s_i)^(-power) g_i

    Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation (2022).
    """
    return Rule("fedbuff", lr, (parts.DiscountStaleness(discounts.Polynomial(power)),), optimizer, schedule)


@register("CA2FL", needs=("clients",), place=7)
def ca2fl(
    lr: float,
    clients: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (h + 1/K sum (g_i - h_i)),  h_i the last delivery of client i, h their mean over all clients

    Wang, Cao, Wu, Chen, Chen: Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
    Calibration (2024).
    """
    return Rule("ca2fl", lr, (parts.Calibrate(),), optimizer, schedule, clients=clients)


@register("ACE", needs=("staleness", "clients"))
def ace(
    lr: float,
    clients: int,
    max_staleness: int | None = None,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr mean_i u_i,  u_i the latest gradient of client i (ACED: not older than max_staleness)

    Chang et al.: Mitigating Participation Imbalance Bias in Asynchronous Federated Learning (2025).

    The mean is over the clients seen so far; the paper starts by waiting for all of them.
    """
    return Rule("ace", lr, (parts.AverageEveryone(max_staleness),), optimizer, schedule, clients=clients)


@register(
    "Recall",
    needs=("staleness", "clients"),
    start=0.01,
    knob="half_distance",
    grid=(0.06, 0.12, 0.24, 0.48),
)
def recall(
    lr: float,
    clients: int,
    half_distance: float = 0.12,
    power: float = 0.5,
    momentum: float = 0.5,
    reach: float = 0.12,
    memory_precision: str = "full",
    measured: bool = False,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr' U V^T,  U S V^T a layer of the running mean of  1/K sum a_i (g_i - b_i (h_i - m))

    kasync's own (2026), with the steps of Muon (Jordan et al., 2024).

    a_i ~ (1 + s_i)^(-power) against its running mean. h_i is the last delivery of client i, trusted the less the
    further the model has gone since it was computed, b_i = 2^(-(r_i / half_distance)^2); m is the mean of all, each
    counted b_j times. Every layer moves equally far in all its directions, by lr' = lr or less: while a typical client
    works the model goes no further than `reach`. Distances are those of a random walk, r_i^2 = sum of lr'^2. `measured`
    lowers all b_i by how much of b_i (h_i - m) is found in g_i - m.
    """
    return Rule(
        "recall",
        lr,
        (
            parts.KeepWithinReach(reach),
            parts.Recall(half_distance, memory_precision, measured),
            parts.DiscountAgainstUsual(discounts.Polynomial(power)),
        ),
        optimizer or functools.partial(optimizers.Muon, momentum=momentum),
        schedule,
        clients=clients,
    )


@register("FADAS", needs=("staleness",), start=0.001)
def fadas(
    lr: float,
    patience: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    scaled: bool = False,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr' m/(sqrt(max v) + eps)  on d = 1/K sum g_i;  lr' = min(lr, 1/max s) when max s > patience

    Wang, Wang, Lu, Chen: FADAS: Towards Federated Adaptive Asynchronous Optimization (2024), delay-adaptive variant.

    As published the rate is capped at 1/max s, which never binds at rates such as .001. With
    `scaled`, as in its authors' code, it is lr/max s.
    """
    usual = functools.partial(optimizers.AMSGrad, betas=betas, eps=eps)
    return Rule("fadas", lr, (parts.SlowWhenAnyStale(patience, scaled),), optimizer or usual, schedule)


@register("Ringmaster ASGD", needs=("staleness",), from_run={"max_staleness": _average_staleness})
def ringmaster(
    lr: float,
    max_staleness: float,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/n sum over the n arrivals with d_i < max_staleness of g_i,  d_i the accepted updates since its start

    Maranjyan, Tyurin, Richtarik: Ringmaster ASGD (2025), K at a time.

    Only accepted updates count, as in the paper: a step whose arrivals are all ignored makes nobody staler.
    """
    return Rule("ringmaster", lr, (parts.DropStale(max_staleness),), optimizer, schedule)


@register("Ringleader ASGD", needs=("clients",))
def ringleader(
    lr: float,
    clients: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr mean over all clients of the mean of their gradients in this round

    Maranjyan, Richtarik: Ringleader ASGD (2025), K at a time.

    A round gathers until every client has delivered, then every client's next delivery triggers one update.
    """
    return Rule("ringleader", lr, (parts.AverageRounds(),), optimizer, schedule, clients=clients)


@register("Delay-adaptive SGD", needs=("staleness",), from_run={"concurrency": _average_staleness})
def delay_adaptive(
    lr: float,
    concurrency: float,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - 1/K sum lr min(1, concurrency/s_i) g_i

    Koloskova, Stich, Jaggi: Sharper Convergence Guarantees for Asynchronous SGD (2022); Mishchenko et al. (2022).

    `concurrency` is the staleness up to which the full rate is used: clients / k, the average one, is their choice.
    """
    checks.above("concurrency", concurrency, 0.0)
    return Rule("delay_adaptive", lr, (parts.DiscountStaleness(discounts.Inverse(concurrency)),), optimizer, schedule)


@register("Krum", needs=())
def krum(
    lr: float,
    byzantine: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr g_i  for the i with the least sum of squared distances to its K - byzantine - 2 nearest

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries (2017).
    """
    return Rule("krum", lr, (parts.PickCentral(byzantine),), optimizer, schedule)


@register("Geometric median", needs=("batch_sizes",))
def geometric_median(
    lr: float,
    iterations: int = 16,
    smoothing: float = 1e-6,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr argmin_v sum m_i |v - g_i|

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning (2022), smoothed Weiszfeld iterations.
    """
    return Rule("geometric_median", lr, (parts.FindMedian(iterations, smoothing),), optimizer, schedule)


@register("Centered clipping", needs=(), knob="radius", grid=(0.1, 1.0, 10.0, 100.0))
def centered_clip(
    lr: float,
    radius: float,
    iterations: int = 1,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr v,  v <- v + 1/K sum (g_i - v) min(1, radius/|g_i - v|)

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization (2021).
    """
    return Rule("centered_clip", lr, (parts.CenterAndClip(radius, iterations),), optimizer, schedule)


@register("FLTrust", needs=("server_gradient",))
def fltrust(
    lr: float,
    server_gradient: ServerGradient,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr sum t_i g_i |v|/|g_i| / sum t_i,  t_i = max(0, cos(g_i, v)),  v the server's own gradient

    Cao, Fang, Liu, Gong: FLTrust (2021).
    """
    return Rule("fltrust", lr, (parts.TrustByServer(server_gradient),), optimizer, schedule)


@register("AFLGuard", needs=("server_gradient",), knob="radius", grid=(0.5, 1.0, 1.5, 3.0))
def aflguard(
    lr: float,
    server_gradient: ServerGradient,
    radius: float = 1.5,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/n sum over the n arrivals with |g_i - v| <= radius |v| of g_i,  v the server's own gradient

    Fang, Liu, Gong, Bentley: AFLGuard: Byzantine-robust Asynchronous Federated Learning (2022).
    """
    return Rule("aflguard", lr, (parts.AcceptNearServer(server_gradient, radius),), optimizer, schedule)


@register("FedStale", needs=("clients",), knob="trust", grid=(0.0, 0.25, 0.5, 0.75, 1.0))
def fedstale(
    lr: float,
    clients: int,
    trust: float = 0.5,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (1/K sum (g_i - trust h_i) + trust h),  h_i the last delivery of client i, h their mean over all

    Rodio, Neglia: FedStale: Leveraging Stale Client Updates in Federated Learning (2024).

    With trust 1 it is CA2FL, with 0 K-async SGD. The paper's 1/p_i, by how often client i takes part, is taken as P/K.
    """
    return Rule("fedstale", lr, (parts.Calibrate(trust),), optimizer, schedule, clients=clients)


@register("AREA", needs=("clients", "starts"), start=1.0)
def area(
    clients: int,
    lr: float = 1.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w + lr/P sum (y_i - y_i old),  y_i the model client i has trained, the first parameters before it has one

    Iakovidou, Kim: Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays
    (2024).

    With lr = 1, w stays the mean of the newest models of all P clients. In the paper each client sends what
    changed since its last upload; here the server has the table.
    """
    return Rule("area", lr, (parts.AverageModels(),), optimizer, schedule, clients=clients)


@register("FedFa", needs=("starts",), start=1.0, from_run={"queue": _queue})
def fedfa(
    queue: int,
    lr: float = 1.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w + lr/queue sum (y_i - y_oldest),  y_i a trained model, which takes the place of the oldest in a queue

    Xu, Zhang, Di, Liu, Alharthi, Cao: FedFa: A Fully Asynchronous Training Paradigm for Federated Learning (2024).

    With lr = 1, w stays the mean of the queue, which is full of the first parameters in the beginning.
    """
    return Rule("fedfa", lr, (parts.AverageQueue(queue),), optimizer, schedule)


@register("Rescaled ASGD", needs=("clients",))
def rescaled_asgd(
    lr: float,
    clients: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum (n/n_i) g_i,  n_i how often client i has delivered, n the mean over all clients heard

    Mahran, Maranjyan, Richtarik: Rescaled Asynchronous SGD (2026).

    The paper's rate of client i is proportional to the time T_i it takes for its work, which is taken to be 1/n_i: a
    client that always works delivers so often. With known routing these are Generalized AsyncSGD's weights 1/(P p_i).
    """
    return Rule("rescaled_asgd", lr, (parts.BalanceClients(),), optimizer, schedule, clients=clients)


@register("AsyncFedED", needs=("starts",), knob="softness", grid=(0.1, 1.0, 10.0))
def asyncfeded(
    lr: float,
    softness: float = 1.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum softness/(d_i + softness) g_i,  d_i = |w - start_i| / |g_i|

    Wang, Yang, He, Shi, Chen: AsyncFedED: Asynchronous Federated Learning with Euclidean Distance based Adaptive Weight
    Aggregation (2022).

    A fresh delivery has the weight 1. How many epochs a client trains next, which the paper adapts, is the work's.
    """
    return Rule("asyncfeded", lr, (parts.DiscountDistance(softness),), optimizer, schedule)


@register("PORT", needs=("staleness", "batch_sizes", "starts"), knob="age", grid=(0.0, 1.0, 3.0, 10.0))
def port(
    lr: float,
    bound: float = 10.0,
    age: float = 3.0,
    agreement: float = 1.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr sum p_i g_i,  p_i ~ m_i (age bound/(s_i + bound) + agreement (1 + cos(-g_i, w - start_i))/2)

    Su, Li: How Asynchronous can Federated Learning Be? (2022), its weights.

    Clients beyond the bound are asked to report at once in the paper, which is for the one who schedules them.
    """
    return Rule("port", lr, (parts.WeighByAgeAndDirection(bound, age, agreement),), optimizer, schedule)


@register("Gap-Aware", needs=("starts",))
def gap_aware(
    lr: float,
    decay: float = 0.999,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum g_i/(1 + |w - start_i|/C) by coordinate,  C = lr (sqrt(running mean of g^2) + 1e-8)

    Barkai, Hakimi, Schuster: Gap-Aware Mitigation of Gradient Staleness (2019).

    C is how far a usual step moves the coordinate, at the highest rate that the schedule allows.
    """
    return Rule("gap_aware", lr, (parts.DivideByGap(lr, decay),), optimizer, schedule)


@register("DC-ASGD", needs=("starts",), knob="compensation", grid=(0.0, 0.01, 0.04, 0.16, 2.0))
def dc_asgd(
    lr: float,
    compensation: float = 0.04,
    decay: float | None = None,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr/K sum (g_i + c g_i (.) g_i (.) (w - start_i)),  c = compensation, or compensation/sqrt(mean of g^2)

    Zheng, Meng, Wang, Chen, Yu, Ma, Liu: Asynchronous Stochastic Gradient Descent with Delay Compensation (2017).

    With a decay c is divided by the root of a running mean (DC-ASGD-a, theirs .95 with a compensation of 2). The
    correction is made for gradients: of the difference that several local steps made it is no longer one.
    """
    return Rule("dc_asgd", lr, (parts.CompensateDelay(compensation, decay),), optimizer, schedule)


@register("Momentum Approximation", needs=("staleness",), knob="momentum", grid=(0.0, 0.5, 0.9, 0.95))
def momentum_approximation(
    lr: float,
    momentum: float = 0.9,
    power: float = 0.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr m,  m <- u d + v m,  d = 1/K sum (1 + s_i)^(-power) g_i,  u and v fitted to true momentum

    Yu, Song, Wang, Chitnis: Momentum Approximation in Asynchronous Private Federated Learning (2024), light variant.

    u and v are the least squares fit of the weight that m gives each version of the model to the weight that momentum
    without staleness would give it.
    """
    return Rule(
        "momentum_approximation",
        lr,
        (parts.DiscountStaleness(discounts.Polynomial(power)), parts.ApproximateMomentum(momentum)),
        optimizer,
        schedule,
    )


@register("Momentum Look-Ahead", needs=(), knob="momentum", grid=(0.0, 0.5, 0.9))
def momentum_look_ahead(
    lr: float,
    momentum: float = 0.9,
    ahead: bool = False,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (d + momentum m),  m <- momentum m + (1 - momentum) d,  d = 1/K sum g_i

    Ajanthan, Ramasinghe, Avraham, Zuo, Long: Momentum Look-Ahead for Asynchronous Distributed Low-Communication
    Training (2025).

    Whether clients also start from w - lr momentum m differs between readings; here they start from w, and with `ahead`
    from there: then that point is the server's model, at a constant rate.
    """
    usual = functools.partial(optimizers.LookAhead, momentum=momentum, ahead=ahead)
    return Rule("momentum_look_ahead", lr, (), optimizer or usual, schedule)


@register(
    "HeLoCo",
    needs=(),
    knob="momentum",
    grid=(0.0, 0.5, 0.9),
    from_run={"weight": lambda clients, k: clients**-0.5},  # the paper's rho
)
def heloco(
    lr: float,
    momentum: float = 0.9,
    keep: float = 0.2,
    turn: float = 1.0,
    shrink: float = 0.5,
    stiffness: float = 3.0,
    weight: float = 1.0,
    ahead: bool = True,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (e + momentum m),  m <- momentum m + (1 - momentum) e,  e = weight d corrected by m in each layer

    Al Asif, Diem, Munoz, Wolf, Jannesari, Mazaheri: HeLoCo: Efficient Asynchronous Low-Communication Training under
    Data and Device Heterogeneity (2026).

    In a layer where cos(d, m) is at least `keep` d stays as it is, where it is negative d loses some of its part along
    m, and between the two d is turned towards m. The paper corrects one delivery at a time; here it is d = 1/K sum g_i,
    the same at K = 1. Clients start from w - lr momentum m, which is the server's model here.
    """
    usual = functools.partial(
        optimizers.HeLoCo,
        momentum=momentum,
        keep=keep,
        turn=turn,
        shrink=shrink,
        stiffness=stiffness,
        weight=weight,
        ahead=ahead,
    )
    return Rule("heloco", lr, (), optimizer or usual, schedule)


@register("Delayed Nesterov", needs=(), knob="every", grid=(1, 10, 32))
def delayed_nesterov(
    lr: float,
    momentum: float = 0.9,
    every: int = 10,
    share: float = 0.0,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr (c momentum m + d/N),  every N steps m <- momentum m + mean of the last N d and 1 - c N + c for c

    Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato: Asynchronous Local-SGD Training for Language Modeling
    (2024).

    N is `every`, c is `share`, d = 1/K sum g_i. With c = 0, N steps move as far as one Nesterov step on their mean.
    """
    usual = functools.partial(optimizers.DelayedNesterov, momentum=momentum, every=every, share=share)
    return Rule("delayed_nesterov", lr, (), optimizer or usual, schedule)


@register("FedAvgM", needs=(), knob="momentum", grid=(0.0, 0.5, 0.9))
def fedavgm(
    lr: float,
    momentum: float = 0.9,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr v,  v <- momentum v + 1/K sum g_i

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification (2019).
    """
    checks.at_least("momentum", momentum, 0.0)
    usual = functools.partial(torch.optim.SGD, momentum=momentum)
    return Rule("fedavgm", lr, (), optimizer or usual, schedule)


@register("FedAdam", needs=(), start=0.003, knob="eps", grid=(1e-4, 1e-3, 1e-2))
def fedadam(
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr m/(sqrt(v) + eps),  m <- b1 m + (1-b1) d,  v <- b2 v + (1-b2) d^2,  d = 1/K sum g_i

    Reddi et al.: Adaptive Federated Optimization (2020).

    Without the corrections of torch's Adam, and v begins at eps^2, as the paper has it.
    """
    usual = functools.partial(optimizers.FedAdam, betas=betas, eps=eps)
    return Rule("fedadam", lr, (), optimizer or usual, schedule)


@register("FedYogi", needs=(), start=0.003, knob="eps", grid=(1e-4, 1e-3, 1e-2))
def fedyogi(
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr m/(sqrt(v) + eps),  m <- b1 m + (1-b1) d,  v <- v - (1-b2) d^2 sign(v - d^2),  d = 1/K sum g_i

    Reddi et al.: Adaptive Federated Optimization (2020).

    Without the corrections of torch's Adam, and v begins at eps^2, as the paper has it.
    """
    usual = functools.partial(optimizers.FedAdam, betas=betas, eps=eps, yogi=True)
    return Rule("fedyogi", lr, (), optimizer or usual, schedule)


@register("Ringmaster LMO", needs=("staleness",), start=0.01, from_run={"max_staleness": _average_staleness})
def ringmaster_lmo(
    lr: float,
    max_staleness: float,
    momentum: float = 0.95,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> Rule:
    """w <- w - lr U V^T,  U S V^T a layer of m <- momentum m + (1 - momentum) d,  d the mean of arrivals fresh enough

    Sadiev, Maranjyan, Ilin, Richtarik: Ringmaster LMO (2026), K at a time.

    Work with a delay of max_staleness accepted updates or more is ignored; its momentum is 1 - a. Their code blends in
    Nesterov's way and restarts a client as soon as its delay reaches the bound, which is the scheduler's.
    """
    usual = functools.partial(optimizers.Muon, momentum=momentum)
    return Rule("ringmaster_lmo", lr, (parts.DropStale(max_staleness),), optimizer or usual, schedule)
