"""A critic of two layers on the policy's own states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_group_rl.batching import in_parts
from lit_group_rl.critics.base import Critic
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.functional.rng import seeded
from lit_group_rl.functional.value_loss import value_loss
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import LossContext, Problem, Recipe, RecipeError, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


class LightCritic(Critic):
    """Linear(d, width), GELU, Linear(width, 1) on the detached last hidden state that predicts the token.

        V[t] = f(sg(h[t])),  h[t] a function of the prompt and the tokens before t

    The state after the token would know the outcome: a perfect critic would then leave every advantage 0.  Nothing
    flows back into the policy.  It starts at V = 0.  Source: an interview note, which calls it VAPO; no publication
    of that description was found.  A published relative: AsyPPO, arXiv:2510.01656.
    """

    needs = frozenset({"hidden"})

    def __init__(
        self,
        width: int = 256,
        positions: Literal["all", "prompt"] = "all",
        objective: Literal["squared", "bce"] = "squared",
        learning_rate: Number = 1e-4,
    ) -> None:
        """Made when the policy is loaded.

        Args:
            width: Of the hidden layer.
            positions: 'all' predicts at every token; 'prompt' once per prompt, a baseline for the whole group.
            objective: (V - R)^2 / 2, or binary cross-entropy for scores in [0, 1], where V is a probability.
            learning_rate: Of its own parameters.
        """
        super().__init__()
        self.width, self.positions, self.objective, self.learning_rate = width, positions, objective, learning_rate
        require(width >= 1, self, "width", "must be at least 1")
        require_number(self, "learning_rate", low=0.0)
        self.net: nn.Sequential | None = None

    def build(self, policy: HFPolicy) -> None:
        with seeded("light critic", policy.hidden_width, self.width):
            last = nn.Linear(self.width, 1)
            self.net = nn.Sequential(nn.Linear(policy.hidden_width, self.width), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Value, or its logit under 'bce'.  [B, T, d] -> [B, T]; T is 1 with positions 'prompt'."""
        assert self.net is not None
        hidden = hidden.detach() if self.positions == "all" else hidden[:, :1].detach()
        return self.net(hidden.float()).squeeze(-1)

    def annotate(self, batch: RolloutBatch, policy: HFPolicy) -> None:
        def values(rows: RolloutBatch) -> Tensor:
            out = self(policy.score(rows, hidden=True).hidden)
            out = (out.sigmoid() if self.objective == "bce" else out).expand(rows.mask.shape)
            return torch.where(rows.completion_mask, out, 0.0)

        batch.values = in_parts(batch, self.micro_batch_tokens, values)

    def loss(self, ctx: LossContext, policy: HFPolicy) -> Tensor:
        batch, out = ctx.batch, self(ctx.batch.features["hidden"])
        if self.positions == "prompt":
            mask, targets, count = ctx.mask.any(1, keepdim=True), batch.totals[:, None], ctx.counts.rows
        else:
            assert batch.returns is not None
            mask, targets, count = ctx.mask, batch.returns, ctx.counts.tokens
        targets = torch.where(mask, targets, 0.0).to(out.dtype)
        if self.objective == "bce":
            self._refuse_outside(targets)
            each = binary_cross_entropy_with_logits(out, targets, reduction="none")
        else:
            each = value_loss(out, targets)
        ctx.metrics.masked("critic/loss", each, mask)
        ctx.metrics.masked("critic/return_mean", targets, mask)
        return masked_sum(each, mask) / max(count, 1.0)

    @staticmethod
    def _refuse_outside(targets: Tensor) -> None:
        low, high = float(targets.min()), float(targets.max())
        if low < 0 or high > 1:
            raise RecipeError(
                f"model.critic.objective: 'bce' needs scores in [0, 1], this step has {low:g} to {high:g}. "
                "Use objective 'squared', or rewards and shapers that stay in [0, 1]"
            )

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        ranges = [r.range for r in (recipe.parts.get("rewards") or {}).values() if r.weight != 0]
        if self.objective == "bce" and any(r is not None and (r[0] < 0 or r[1] > 1) for r in ranges):
            yield Problem(
                "model.critic.objective",
                "'bce' needs scores in [0, 1], and a reward of the recipe goes beyond",
                "Use objective 'squared'",
            )
