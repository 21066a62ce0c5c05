"""Which formulas can a rule be made of? Each file answers one question about K deliveries."""

from kasync.parts.clipping import ClipNorms, ClipToEstimate
from kasync.parts.mixing import MixModels
from kasync.parts.momentum import AddMomentum, AddRoundMomentum, Remember
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
from kasync.parts.tables import AverageEveryone, AverageRounds, Calibrate
from kasync.parts.trust import AcceptByScore, AcceptNearServer, TrustByServer

__all__ = [
    "AcceptByScore",
    "AcceptNearServer",
    "AddMomentum",
    "AddRoundMomentum",
    "AverageEveryone",
    "AverageRounds",
    "Calibrate",
    "CenterAndClip",
    "ClipNorms",
    "ClipToEstimate",
    "DiscountAgainstUsual",
    "DiscountStaleness",
    "DropStale",
    "EnterStageTwo",
    "EstimateByStaleness",
    "FindMedian",
    "KeepWithinReach",
    "MixModels",
    "PickCentral",
    "Recall",
    "Remember",
    "SelectConsistent",
    "SlowWhenAllStale",
    "SlowWhenAnyStale",
    "TrustByServer",
    "WeighByStaleness",
]
