"""Factors on the loss of a token or a row."""

from lit_group_rl.loss_weights.base import LossWeight

__all__ = ["LossWeight"]
