"""A full critic: a transformer with a scalar head, as PPO, VC-PPO and VAPO use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from lit_group_rl.batching import in_parts
from lit_group_rl.critics.backbone import body_of, prefix_states
from lit_group_rl.critics.base import Critic
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.functional.value_loss import value_loss
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import LossContext, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


class ValueModel(Critic):
    """Reads prompt and completion with a transformer and predicts the return before every token.

        loss = coef * mean over trained tokens of max((V - R)^2, (clamp(V, V_old +- clip) - R)^2) / 2

    R are the targets of the advantage (GAE), V_old the values at the rollout.  It starts at V = 0.  Values are never
    divided by the sampling temperature.

    To train it alone first, on the returns of the fixed policy (VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118),
    use the update schedule CriticWarmUp with GAE(critic_lam=1), whose targets are then Monte-Carlo returns.
    """

    def __init__(
        self,
        trunk: Literal["own", "detached", "joint"] = "own",
        path: str | None = None,
        clip: float | None = 0.2,
        coef: float = 1.0,
        learning_rate: Number = 1e-4,
    ) -> None:
        """Made when the policy is loaded.

        Args:
            trunk: 'own' transformer, or a head on the policy's states, 'detached' or trained together ('joint').
            path: Folder with weights and the policy's tokenizer for an own trunk; null copies the policy's body.
            clip: A value may move this far from that of the rollout before it earns nothing more; null: no clipping.
            coef: Weight of the loss; it matters with a joint trunk, where it competes with the policy's.
            learning_rate: Of its own parameters; a joint trunk moves at the policy's.
        """
        super().__init__()
        self.trunk, self.path, self.clip, self.coef, self.learning_rate = trunk, path, clip, coef, learning_rate
        require(path is None or trunk == "own", self, "path", "needs trunk 'own': a shared trunk is the policy's")
        require(clip is None or 0 < clip < float("inf"), self, "clip", "must be above 0, or null")
        require_number(self, "coef", low=0.0)
        require_number(self, "learning_rate", low=0.0)
        if trunk != "own":
            self.needs = frozenset({"hidden"})  # type: ignore[misc]  # it depends on the option
        self.body: nn.Module | None = None
        self.head: nn.Linear | None = None

    def build(self, policy: HFPolicy) -> None:
        width = policy.hidden_width
        if self.trunk == "own":
            body = body_of(policy, self.path, "model.critic.path")
            self.body, width = body, int(body.config.hidden_size)
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: RolloutBatch, hidden: Tensor | None = None) -> Tensor:
        """Value before every completion token, 0 at padding.  ``hidden`` [B, T, d] is a shared trunk's -> [B, T]."""
        assert self.head is not None
        if self.body is not None:
            hidden = prefix_states(
                self.body, batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask
            )
        assert hidden is not None
        values = self.head(hidden.to(self.head.weight.dtype)).squeeze(-1).float()
        return torch.where(batch.completion_mask, values, 0.0)

    def annotate(self, batch: RolloutBatch, policy: HFPolicy) -> None:
        def values(rows: RolloutBatch) -> Tensor:
            return self(rows, policy.score(rows, hidden=True).hidden if self.body is None else None)

        batch.values = in_parts(batch, self.micro_batch_tokens, values)

    def loss(self, ctx: LossContext, policy: HFPolicy) -> Tensor:
        batch = ctx.batch
        assert batch.returns is not None
        hidden = ctx.hidden if self.trunk == "joint" else batch.features.get("hidden")
        values = self(batch, hidden)
        each = value_loss(values, batch.returns, batch.values, self.clip)
        ctx.metrics.masked("critic/loss", each, ctx.mask)
        ctx.metrics.masked("critic/return_mean", batch.returns, ctx.mask)
        if self.clip is not None:
            assert batch.values is not None
            moved = (values.detach() - batch.values).abs() > self.clip
            ctx.metrics.masked("critic/clip_frac", moved.double(), ctx.mask)
        return self.coef * masked_sum(each, ctx.mask) / max(ctx.counts.tokens, 1.0)
