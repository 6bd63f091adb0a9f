"""The second agent of the dual-agent recipe: learns to judge completions."""

from lit_group_rl.critics.base import AuxiliaryModel


class Evaluator(AuxiliaryModel):
    """Scores whole completions; leaves its soft reward in ``batch.features['evaluator']`` [B]."""
