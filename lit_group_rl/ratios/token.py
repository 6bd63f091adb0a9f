"""One ratio per token."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.ratios.base import ImportanceRatio


@dataclass(frozen=True)
class TokenRatio(ImportanceRatio):
    """log r[i, t] = logp - old_logp of that token.  PPO, arXiv:1707.06347; GRPO, arXiv:2402.03300."""

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return token_log_ratio
