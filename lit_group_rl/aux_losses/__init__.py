"""Terms beside the policy loss: divergence from a reference, entropy, likelihood of good answers."""

from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.aux_losses.entropy import Entropy
from lit_group_rl.aux_losses.expert_nll import ExpertNLL
from lit_group_rl.aux_losses.group_supervised import GroupSupervised
from lit_group_rl.aux_losses.kl import KL
from lit_group_rl.aux_losses.kl_cov import KLCov
from lit_group_rl.aux_losses.positive_nll import PositiveNLL

__all__ = ["KL", "AuxLoss", "Entropy", "ExpertNLL", "GroupSupervised", "KLCov", "PositiveNLL"]
