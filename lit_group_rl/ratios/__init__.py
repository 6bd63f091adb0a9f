"""How far the policy has moved since the rollout, per token or per sequence."""

from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.ratios.token import TokenRatio

__all__ = ["ImportanceRatio", "TokenRatio"]
