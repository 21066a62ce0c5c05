"""The formulas that rules are made of."""

from kasync.parts.clipping import ClipNorms, ClipToEstimate
from kasync.parts.compensation import CompensateDelay, DivideByGap
from kasync.parts.distance import DiscountDistance, WeighByAgeAndDirection
from kasync.parts.mixing import AverageModels, AverageQueue, MixModels
from kasync.parts.momentum import AddMomentum, AddRoundMomentum, ApproximateMomentum
from kasync.parts.reach import KeepWithinReach
from kasync.parts.recall import Recall
from kasync.parts.robust import CenterAndClip, FindMedian, PickCentral
from kasync.parts.selection import EnterStageTwo, SelectConsistent
from kasync.parts.staleness import (
    DiscountAgainstUsual,
    DiscountStaleness,
    DropStale,
    EstimateByStaleness,
    SlowWhenAllStale,
    SlowWhenAnyStale,
    WeighByStaleness,
)
from kasync.parts.tables import AverageEveryone, AverageRounds, BalanceClients, Calibrate
from kasync.parts.trust import AcceptByScore, AcceptNearServer, TrustByServer

__all__ = [
    "AcceptByScore",
    "AcceptNearServer",
    "AddMomentum",
    "AddRoundMomentum",
    "ApproximateMomentum",
    "AverageEveryone",
    "AverageModels",
    "AverageQueue",
    "AverageRounds",
    "BalanceClients",
    "Calibrate",
    "CenterAndClip",
    "ClipNorms",
    "ClipToEstimate",
    "CompensateDelay",
    "DiscountAgainstUsual",
    "DiscountDistance",
    "DiscountStaleness",
    "DivideByGap",
    "DropStale",
    "EnterStageTwo",
    "EstimateByStaleness",
    "FindMedian",
    "KeepWithinReach",
    "MixModels",
    "PickCentral",
    "Recall",
    "SelectConsistent",
    "SlowWhenAllStale",
    "SlowWhenAnyStale",
    "TrustByServer",
    "WeighByAgeAndDirection",
    "WeighByStaleness",
]
