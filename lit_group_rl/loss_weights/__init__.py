"""Factors on the loss of a token or a row."""

from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.loss_weights.clip_cov import ClipCov
from lit_group_rl.loss_weights.entropy_quantile import EntropyQuantile
from lit_group_rl.loss_weights.future_kl import FutureKL
from lit_group_rl.loss_weights.gaussian_noise import GaussianNoise
from lit_group_rl.loss_weights.group_weight import GroupWeight
from lit_group_rl.loss_weights.off_policy_sequence_mask import OffPolicySequenceMask
from lit_group_rl.loss_weights.rollout_is import RolloutIS
from lit_group_rl.loss_weights.truncated_mask import TruncatedMask

__all__ = [
    "ClipCov",
    "EntropyQuantile",
    "FutureKL",
    "GaussianNoise",
    "GroupWeight",
    "LossWeight",
    "OffPolicySequenceMask",
    "RolloutIS",
    "TruncatedMask",
]
