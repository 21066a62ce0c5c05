"""Which rules are there? Each is a short composition of parts, with its formula and its paper.

Every rule also takes `optimizer` (any class of torch.optim, applied to the direction) and `schedule` (see
kasync.schedules). g_i is a delivered gradient (or start minus trained model), s_i its staleness, K their number.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kasync import checks, discounts, optimizers, parts
from kasync.core import Rule
from kasync.errors import unknown
from kasync.parts.trust import ServerGradient
from kasync.schedules import Constant

RULES: dict[str, Callable[..., Rule]] = {}


def _rule(make: Callable[..., Rule]) -> Callable[..., Rule]:
    """Enter a rule into the table and give it the two settings every rule has."""

    @functools.wraps(make)
    def made(*args: Any, optimizer: Any = None, schedule: Any = None, **settings: Any) -> Rule:
        rule = make(*args, **settings)
        return replace(rule, optimizer=optimizer or rule.optimizer, schedule=schedule or Constant())

    signature = inspect.signature(make)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ("optimizer", "schedule")
    ]
    made.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
    RULES[make.__name__] = made
    return made


def build(name: str, **settings: Any) -> Rule:
    """The rule of this name; a setting it does not have is an error that names the nearest one."""
    if name not in RULES:
        raise unknown("rule", name, RULES)
    known = inspect.signature(RULES[name]).parameters
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)
    missing = [p for p in known if known[p].default is inspect.Parameter.empty and p not in settings]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: give a value")
    return RULES[name](**settings)


@_rule
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
) -> Rule:
    """w <- w - lr/(lr_decay min s + 1) sum p_i g_i,  p_i ~ exp(sharpness cos(g_i, estimate)) above the threshold.

    Zhou, Li, Ren, Yang: Towards Efficient and Stable K-Asynchronous Federated Learning with Unbounded Stale Gradients
    on Non-IID Data (2022), Algorithms 1-3. In the paper's letters, in order: eta_0, alpha, CB, beta, sim_min, B,
    epsilon, gamma.
    """
    return Rule(
        "wkafl",
        lr,
        (
            parts.AddMomentum(momentum),
            parts.ClipNorms(max_norm),
            parts.EstimateByStaleness(),
            parts.EnterStageTwo(loss_threshold),
            parts.ClipToEstimate(ratio),  # before the selection, whose similarities a rescaling does not change
            parts.SelectConsistent(sharpness, threshold),
            parts.SlowWhenAllStale(lr_decay),
            parts.Remember(remember),
        ),
    )


@_rule
def kasync_sgd(lr: float) -> Rule:
    """w <- w - lr/K sum g_i

    Dutta et al.: Slow and Stale Gradients Can Win the Race (2018); Eq. 2 of the WKAFL paper.
    """
    return Rule("kasync_sgd", lr, ())


@_rule
def twafl(lr: float, normalize: bool = True) -> Rule:
    """w <- w - lr sum a_i g_i,  a_i ~ m_i (e/2)^(-s_i)

    Chen, Sun, Jin: Communication-Efficient Federated Deep Learning with Asynchronous Model Update and Temporally
    Weighted Aggregation (2019), as modified by the WKAFL paper. As printed the weights do not sum to one and the step
    all but vanishes when everything is stale (normalize=False); its authors' code divides by their sum.
    """
    return Rule("twafl", lr, (parts.WeighByStaleness(normalize=normalize),))


@_rule
def sasgd(lr: float) -> Rule:
    """w <- w - 1/K sum lr/max(s_i, 1) g_i

    Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD for Distributed Deep Learning (2016).
    """
    return Rule("sasgd", lr, (parts.DiscountStaleness(discounts.Inverse(1.0)),))


@_rule
def gsgm(lr: float, momentum: float, clients: int) -> Rule:
    """w <- w - lr (1/K sum g_i + momentum M),  M the mean of the corrected gradients of the last round

    Li et al.: Gradient Scheduling with Global Momentum for Non-IID Data Distributed Asynchronous Training (2019), K at
    a time. Wants timelines.once_per_round: each client delivers once in a round.
    """
    return Rule("gsgm", lr, (parts.AddRoundMomentum(momentum, clients),))


@_rule
def zeno(
    lr: float,
    server_gradient: ServerGradient,
    scale: float = 0.1,
    penalty: float = 0.02,
    slack: float = 0.1,
    refresh_every: int = 5,
) -> Rule:
    """w <- w - lr g |v|/|g|  if  scale <v, g> - penalty |g|^2 >= -scale slack,  v the server's own gradient

    Xie, Koyejo, Gupta: Zeno++ (2020); gamma, rho, epsilon and k of the WKAFL paper's Appendix A.
    """
    return Rule("zeno", lr, (parts.AcceptByScore(server_gradient, scale, penalty, slack, refresh_every),))


@_rule
def fedasync(mixing: float, discount: discounts.Discount = discounts.Polynomial(0.5)) -> Rule:  # noqa: B008 (frozen)
    """w <- w + 1/K sum mixing discount(s_i) (w_i - w),  w_i the client's trained model

    Xie, Koyejo, Gupta: Asynchronous Federated Optimization (2019). Discounts: NoDiscount, Polynomial, Hinge.
    """
    return Rule("fedasync", 1.0, (parts.MixModels(mixing, discount),))


@_rule
def fedbuff(lr: float, power: float = 0.5) -> Rule:
    """w <- w - lr/K sum (1 + s_i)^(-power) g_i

    Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation (2022).
    """
    return Rule("fedbuff", lr, (parts.DiscountStaleness(discounts.Polynomial(power)),))


@_rule
def ca2fl(lr: float, clients: int) -> Rule:
    """w <- w - lr (h + 1/K sum (g_i - h_i)),  h_i the last delivery of client i, h their mean over all clients

    Wang, Cao, Wu, Chen, Chen: Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
    Calibration (2024).
    """
    return Rule("ca2fl", lr, (parts.Calibrate(clients),))


@_rule
def ace(lr: float, clients: int, max_staleness: int | None = None) -> Rule:
    """w <- w - lr mean_i u_i,  u_i the latest gradient of client i (ACED: not older than max_staleness)

    Chang et al.: Mitigating Participation Imbalance Bias in Asynchronous Federated Learning (2025). The mean is over
    the clients seen so far; the paper starts by waiting for all of them.
    """
    return Rule("ace", lr, (parts.AverageEveryone(clients, max_staleness),))


@_rule
def recall(
    lr: float,
    clients: int,
    half_distance: float = 0.12,
    power: float = 0.5,
    momentum: float = 0.5,
    reach: float = 0.12,
    memory_precision: str = "full",
) -> Rule:
    """w <- w - lr' U V^T,  U S V^T a layer of the running mean of  1/K sum a_i (g_i - b_i (h_i - m))

    a_i ~ (1 + s_i)^(-power) against its running mean. h_i is the last delivery of client i, trusted the less the
    further the model has gone since it was computed, b_i = 2^(-(r_i / half_distance)^2); m is the mean of all, each
    counted b_j times. Every layer moves equally far in all its directions, by lr' = lr or less: while a typical client
    works the model goes no further than `reach`. Distances are those of a random walk, r_i^2 = sum of lr'^2.
    kasync's own (2026), with the steps of Muon (Jordan et al., 2024).
    """
    return Rule(
        "recall",
        lr,
        (
            parts.KeepWithinReach(clients, reach),
            parts.Recall(clients, half_distance, memory_precision),
            parts.DiscountAgainstUsual(clients, discounts.Polynomial(power)),
        ),
        optimizer=functools.partial(optimizers.Muon, momentum=momentum),
    )


@_rule
def fadas(lr: float, patience: float = 1.0, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8) -> Rule:
    """w <- w - lr' m/(sqrt(max v) + eps)  on d = 1/K sum g_i;  lr' = min(lr, 1/max s) when max s > patience

    Wang, Wang, Wang, Chen: FADAS: Towards Federated Adaptive Asynchronous Optimization (2024), delay-adaptive variant.
    """
    optimizer = functools.partial(optimizers.AMSGrad, betas=betas, eps=eps)
    return Rule("fadas", lr, (parts.SlowWhenAnyStale(patience),), optimizer=optimizer)


@_rule
def ringmaster(lr: float, max_staleness: float) -> Rule:
    """w <- w - lr/n sum over the n arrivals with s_i < max_staleness of g_i

    Maranjyan, Tyurin, Richtarik: Ringmaster ASGD (2025), K at a time.
    """
    return Rule("ringmaster", lr, (parts.DropStale(max_staleness),))


@_rule
def ringleader(lr: float, clients: int) -> Rule:
    """w <- w - lr mean over all clients of the mean of their gradients in this round

    Maranjyan, Richtarik: Ringleader ASGD (2025), K at a time. A round gathers until every client has delivered, then
    every client's next delivery triggers one update.
    """
    return Rule("ringleader", lr, (parts.AverageRounds(clients),))


@_rule
def delay_adaptive(lr: float, concurrency: float = 1.0) -> Rule:
    """w <- w - 1/K sum lr min(1, concurrency/s_i) g_i

    Koloskova, Stich, Jaggi: Sharper Convergence Guarantees for Asynchronous SGD (2022); Mishchenko et al. (2022).
    `concurrency` is the staleness up to which the full rate is used: clients / k, the average one, is their choice.
    """
    checks.above("concurrency", concurrency, 0.0)
    return Rule("delay_adaptive", lr, (parts.DiscountStaleness(discounts.Inverse(concurrency)),))


@_rule
def krum(lr: float, byzantine: int) -> Rule:
    """w <- w - lr g_i  for the i with the least sum of squared distances to its K - byzantine - 2 nearest

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries (2017).
    """
    return Rule("krum", lr, (parts.PickCentral(byzantine),))


@_rule
def geometric_median(lr: float, iterations: int = 16, smoothing: float = 1e-6) -> Rule:
    """w <- w - lr argmin_v sum m_i |v - g_i|

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning (2022), smoothed Weiszfeld iterations.
    """
    return Rule("geometric_median", lr, (parts.FindMedian(iterations, smoothing),))


@_rule
def centered_clip(lr: float, radius: float, iterations: int = 1) -> Rule:
    """w <- w - lr v,  v <- v + 1/K sum (g_i - v) min(1, radius/|g_i - v|)

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization (2021).
    """
    return Rule("centered_clip", lr, (parts.CenterAndClip(radius, iterations),))


@_rule
def fltrust(lr: float, server_gradient: ServerGradient) -> Rule:
    """w <- w - lr sum t_i g_i |v|/|g_i| / sum t_i,  t_i = max(0, cos(g_i, v)),  v the server's own gradient

    Cao, Fang, Liu, Gong: FLTrust (2021).
    """
    return Rule("fltrust", lr, (parts.TrustByServer(server_gradient),))


@_rule
def aflguard(lr: float, server_gradient: ServerGradient, radius: float = 1.5) -> Rule:
    """w <- w - lr/n sum over the n arrivals with |g_i - v| <= radius |v| of g_i,  v the server's own gradient

    Fang, Liu, Gong, Bentley: AFLGuard: Byzantine-robust Asynchronous Federated Learning (2022).
    """
    return Rule("aflguard", lr, (parts.AcceptNearServer(server_gradient, radius),))
