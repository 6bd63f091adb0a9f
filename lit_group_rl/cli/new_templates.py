"""What ``new`` writes: a working component of each slot, to be changed into one's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """A component in one file; NAME and CLASS stand for the user's names."""

    slot: str
    """As ``lit-group-rl ls`` names it."""
    article: str
    check: str
    """Its function of lit_group_rl.testing."""
    option: str
    """How a recipe takes it; PATH stands for its dotted path."""
    code: str


REWARD = '''"""1 for the right answer as the last word, else 0."""


def NAME(completions, answers):
    """One number per completion; None abstains.  Ask for any of prompts, answers, samples, and columns of the data."""
    scores = []
    for completion, answer in zip(completions, answers, strict=True):
        words = completion.split()
        scores.append(None if answer is None else float(bool(words) and words[-1] == answer.strip()))
    return scores
'''

ADVANTAGE = '''"""The median of the group as baseline."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.types import Advantages, RolloutBatch


def NAME(scores: Tensor, group_ids: Tensor, valid: Tensor) -> Tensor:
    """A[i] = s[i] - median of its group; rows that are not valid get 0 and do not count.  [B] x 3 -> [B] float64."""
    values = torch.zeros_like(scores, dtype=torch.float64)
    for group in group_ids[valid].unique():
        members = (group_ids == group) & valid
        values[members] = scores[members].double() - scores[members].double().median()
    return values


@dataclass(frozen=True)
class CLASS(AdvantageEstimator):
    """How much better a completion did than the median of its group."""

    scale: float = 1.0
    """Factor on the advantage."""

    needs_group = True

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = NAME(batch.totals, batch.group_ids, batch.counted)
        return Advantages(per_token(self.scale * values, batch))
'''

RATIO = '''"""A token ratio that counts only a part of the move."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.ratios.base import ImportanceRatio


@dataclass(frozen=True)
class CLASS(ImportanceRatio):
    """log r[t] = strength * (logp - old_logp)."""

    strength: float = 0.5
    """1 is the token ratio."""

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return self.strength * token_log_ratio
'''

CLIP_POLICY = '''"""A clip range that is wider for completions with a high score."""

from dataclasses import dataclass

import torch

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class CLASS(ClipPolicy):
    """The ratio may move within [1 - eps, 1 + eps], eps = wide for solved completions and narrow for others."""

    wide: float = 0.3
    """Epsilon of solved completions."""
    narrow: float = 0.2
    """Epsilon of the others."""

    def bounds(self, ctx: LossContext) -> Bounds:
        assert ctx.batch.solved is not None
        number = ctx.logp.new_tensor
        width = torch.where(ctx.batch.solved, number(self.wide), number(self.narrow))[:, None]
        return Bounds(1 - width, 1 + width)
'''

SURROGATE = '''"""The pessimistic minimum of the free and the clipped objective."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class CLASS(Surrogate):
    """-min(r A, clip(r, low, high) A) per token."""

    zero_without_advantage = True

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        clipped = ctx.ratio
        if bounds.low is not None:
            clipped = torch.maximum(clipped, bounds.low)
        if bounds.high is not None:
            clipped = torch.minimum(clipped, bounds.high)
        return -torch.minimum(ctx.ratio * ctx.advantages, clipped * ctx.advantages)
'''

FILTER = '''"""Train on the groups that were solved at least once."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.functional.groups import group_extreme
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class CLASS(GroupFilter):
    """Keeps a group if one of its members is solved; new prompts are drawn for the others."""

    max_rounds: int = 2
    """Sampling rounds at most, the first included."""

    def keep(self, batch: RolloutBatch) -> Tensor:
        assert batch.solved is not None
        return group_extreme(batch.solved.double(), batch.group_ids, batch.counted, largest=True) > 0
'''

LOSS_WEIGHT = '''"""Tokens that have moved far weigh less."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.types import LossContext


@dataclass(frozen=True)
class CLASS(LossWeight):
    """exp(-strength * |log_ratio|), without gradient."""

    strength: float = 1.0
    """How fast the weight falls; 0 weighs all tokens alike."""

    def weight(self, ctx: LossContext) -> Tensor:
        return (-self.strength * ctx.log_ratio.detach().abs()).exp()
'''

AUX_LOSS = '''"""A penalty on moving away from the policy that drew the completions."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import LossContext


@dataclass(frozen=True)
class CLASS(AuxLoss):
    """coef * log_ratio^2 / 2 per trained token."""

    coef: Number = 0.01
    """Weight in the total loss."""

    def term(self, ctx: LossContext) -> Tensor:
        return ctx.log_ratio**2 / 2
'''

AGGREGATOR = '''"""Between the mean and the sum over a completion."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class CLASS(LossAggregator):
    """mean_i (sum_t x m / l_i^power): power 1 is the mean over a completion, 0 the sum."""

    power: float = 0.5
    """How much length is divided out."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        lengths = mask.sum(1).clamp(min=1).to(values.dtype)
        return (masked_sum(values, mask, dim=1) / lengths**self.power).sum() / max(counts.rows, 1.0)
'''

SHAPER = '''"""A price on every token."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.rewards.base import RewardShaper
from lit_group_rl.schedules.base import Clock, Number
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class CLASS(RewardShaper):
    """Adds -price * length to the score, after groups were filtered on the raw one."""

    price: Number = 0.001
    """Taken off per token."""

    def shape(self, batch: RolloutBatch, clock: Clock) -> Tensor:
        return -clock.at(self.price) * batch.lengths.double()
'''

SCHEDULE = '''"""A number that halves again and again."""

from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, Schedule


@dataclass(frozen=True)
class CLASS(Schedule):
    """start * 0.5 ^ (step / half_life)."""

    start: float = 1e-4
    """Value at the first RL step."""
    half_life: float = 100.0
    """RL steps in which it halves."""

    def value(self, clock: Clock) -> float:
        return self.start * 0.5 ** (clock.step / self.half_life)
'''

FUNCTION = "--model.rewards.NAME={class_path: FunctionReward, init_args: {fn: PATH, weight: 0.1}}"
TEMPLATES: dict[str, Template] = {
    "reward": Template("rewards", "a reward", "check_reward", FUNCTION, REWARD),
    "advantage": Template("advantage", "an advantage", "check_advantage", "--model.advantage=PATH", ADVANTAGE),
    "ratio": Template("ratio", "a ratio", "check_ratio", "--model.ratio=PATH", RATIO),
    "clip_policy": Template(
        "clip_policy", "a clip policy", "check_clip_policy", "--model.clip_policy=PATH", CLIP_POLICY
    ),
    "surrogate": Template("surrogate", "a surrogate", "check_surrogate", "--model.surrogate=PATH", SURROGATE),
    "loss_weight": Template(
        "loss_weights", "a loss weight", "check_loss_weight", "--model.loss_weights.NAME=PATH", LOSS_WEIGHT
    ),
    "aux_loss": Template("aux_losses", "an auxiliary loss", "check_aux_loss", "--model.aux_losses.NAME=PATH", AUX_LOSS),
    "aggregator": Template("aggregator", "an aggregator", "check_aggregator", "--model.aggregator=PATH", AGGREGATOR),
    "filter": Template("filter", "a filter", "check_filter", "--model.filter=PATH", FILTER),
    "shaper": Template("shapers", "a shaper", "check_shaper", "--model.shapers.NAME=PATH", SHAPER),
    "schedule": Template("schedule", "a schedule", "check_schedule", "--model.learning_rate=PATH", SCHEDULE),
}
"""Kind -> template."""

TEST = '''"""CLASS keeps the contract of its slot."""

from lit_group_rl.testing import CHECK
from MODULE import CLASS


def test_it_keeps_the_contract():
    CHECK(MADE)
'''
