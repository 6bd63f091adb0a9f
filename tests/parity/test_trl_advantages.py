"""Advantages of the recipes against TRL's own code; each intended difference is a test of its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl", reason="make parity installs it")

from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.schedules.base import Clock
from tests.builders import make_batch
from tests.parity import ours, stubs

GROUP = 4
LENGTHS = [3, 1, 4, 2, 2, 5, 1, 3, 4, 4, 2, 3]
NAN, INF = math.nan, math.inf
ROUNDING = 1e-6
"""TRL takes n / (n - 1) of its deviations in float32."""


class Given(Reward):
    """A column of scores; None abstains."""

    def __init__(self, values: Tensor) -> None:
        self.values = [None if math.isnan(v) else v for v in values.tolist()]
        self.weight, self.solved_at = 1.0, 1.0

    def score(self, samples: list) -> list:
        return [self.values[int(s.fields["row"])] for s in samples]


def recipe_advantages(rewards: Tensor, recipe: str, *options: str, **logps: Tensor) -> Tensor:
    """[B] of the recipe, from the reward functions [B, K] on: scoring, shaping, estimating."""
    module = ours.module(recipe, *options)
    lengths = LENGTHS[: len(rewards)]
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    batch = make_batch(mask, group_ids=[i // GROUP for i in range(len(rewards))], **logps)
    batch.samples = [
        s.__class__(s.prompt, s.completion, None, {"row": i}, 1, False) for i, s in enumerate(batch.samples)
    ]
    names = list(module.rewards) if rewards.shape[1] == len(module.rewards) else ["exact"]
    given = {name: Given(column) for name, column in zip(names, rewards.T, strict=True)}
    score_rewards(given, batch, Clock(0, 1), 1, RewardMonitor())
    for shaper in module.shapers.values():
        batch.token_rewards = shaper.shape(batch, Clock(0, 1))
    return module.advantage.estimate(batch).values[:, 0]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def trl(rewards: Tensor, **options) -> Tensor:
    return stubs.advantages("grpo", rewards, lengths=LENGTHS[: len(rewards)], group_size=GROUP, **options)


def random_rewards(seed: int, functions: int = 1, missing: float = 0.2) -> Tensor:
    """Of 12 completions; some abstain, never the first of a group."""
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn((12, functions), generator=draw, dtype=torch.float64)
    gone = torch.rand((12, functions), generator=draw) < missing
    gone[::GROUP] = gone[1::GROUP] = False
    return rewards.masked_fill(gone, NAN)


EPS = "--model.advantage.eps=1e-4"
"""TRL's; 1e-6 here, see F4."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("recipe", "options", "theirs"),
    [
        ("grpo", (EPS,), {}),
        ("dr_grpo", (), {"scale_rewards": "none"}),
        ("lite_ppo", (EPS,), {"scale_rewards": "batch"}),
    ],
)
def test_group_advantages_are_those_of_trl(recipe: str, options: tuple, theirs: dict, seed: int) -> None:
    rewards = random_rewards(seed)
    torch.testing.assert_close(
        recipe_advantages(rewards, recipe, *options), trl(rewards, **theirs), rtol=ROUNDING, atol=1e-12
    )


@pytest.mark.parametrize("seed", range(4))
def test_gdpo_normalises_as_trl(seed: int) -> None:
    weights = list(ours.module("gdpo").advantage.weights.values())
    rewards = random_rewards(seed, len(weights))
    theirs = trl(rewards, multi_objective_aggregation="normalize_then_sum", weights=weights)
    torch.testing.assert_close(recipe_advantages(rewards, "gdpo", EPS), theirs, rtol=ROUNDING, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_rloo_with_its_penalty_is_that_of_trl(seed: int) -> None:
    rewards = random_rewards(seed)
    logps = -torch.rand((2, 12, max(LENGTHS)), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    theirs = stubs.advantages(
        "rloo", rewards, lengths=LENGTHS, group_size=GROUP, beta=0.03, old_logp=logps[0], ref_logp=logps[1]
    )
    mine = recipe_advantages(rewards, "rloo", old_logp=logps[0], ref_logp=logps[1])
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


# ---- intended differences


def test_f3_equal_rewards_prefer_nothing() -> None:
    rewards = column(*[0.7] * 4).float()
    rewards = rewards + torch.tensor([[0.0], [0.0], [0.0], [6e-8]])  # one rounding of float32 away
    assert trl(rewards).abs().max() > 1e-4
    assert recipe_advantages(column(*[0.1 + 0.2] * 3, 0.3), "grpo").abs().max() == 0


def test_f4_small_rewards_weigh_as_large_ones() -> None:
    # two of each: z = +-0.5 / sqrt(4 * 0.25 / 3) = +-sqrt(3) / 2 whatever the scale
    small = column(0, 1e-3, 0, 1e-3)
    assert trl(small)[1] < 0.8
    assert recipe_advantages(small, "grpo")[1] == pytest.approx(math.sqrt(3) / 2, rel=2e-3)


def test_f5_a_large_offset_keeps_differences() -> None:
    far = column(1e8, 1e8 + 1, 1e8, 1e8 + 1)
    assert trl(far.float()).abs().max() == 0
    torch.testing.assert_close(recipe_advantages(far, "grpo"), recipe_advantages(far - 1e8, "grpo"))


def test_f7_an_infinite_reward_abstains_and_its_group_still_learns() -> None:
    assert trl(column(INF, 1, 0, 0)).abs().max() == 0
    # the other three: mean 1/3, deviation sqrt((4 + 1 + 1) / 9 / 2) = sqrt(1/3)
    z = torch.tensor([0, 2 / 3, -1 / 3, -1 / 3], dtype=torch.float64) / math.sqrt(1 / 3)
    torch.testing.assert_close(recipe_advantages(column(INF, 1, 0, 0), "grpo"), z, rtol=1e-5, atol=0)
