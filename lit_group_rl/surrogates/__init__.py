"""Ratio, bounds and advantage to a loss per token."""

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.surrogates.clipped import Clipped
from lit_group_rl.surrogates.dro import DRO
from lit_group_rl.surrogates.gamma_weight import GammaWeight
from lit_group_rl.surrogates.group_classification import GroupClassification
from lit_group_rl.surrogates.importance_weighted import ImportanceWeighted
from lit_group_rl.surrogates.offpolicy_shape import OffPolicyShape
from lit_group_rl.surrogates.quadratic import Quadratic
from lit_group_rl.surrogates.reinforce import Reinforce
from lit_group_rl.surrogates.soft_gate import SoftGate
from lit_group_rl.surrogates.unclipped import Unclipped

__all__ = [
    "DRO",
    "Clipped",
    "GammaWeight",
    "GroupClassification",
    "ImportanceWeighted",
    "OffPolicyShape",
    "Quadratic",
    "Reinforce",
    "SoftGate",
    "Surrogate",
    "Unclipped",
]
