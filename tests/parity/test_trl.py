"""Loss and gradient of the recipes against TRL's own code; each intended difference is a test of its own.

TRL is no dependency: ``make parity`` installs it beside the package and runs this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl", reason="make parity installs it")

from tests.builders import make_batch
from tests.parity import ours, stubs

LENGTH = 8
"""Longest completion; the dr_grpo recipe divides by it."""


@dataclass
class Rows:
    """Random completions: padding on the right, tokens that are not trained on between those that are."""

    seed: int
    spread: float = 0.3
    """Of logp - old_logp."""
    count: int = 6
    dead: tuple[int, ...] = ()
    """Rows without a trained token."""
    logp: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        lengths = torch.randint(2, LENGTH + 1, (self.count,), generator=draw)
        self.completion_mask = torch.arange(LENGTH)[None] < lengths[:, None]
        holes = torch.rand(self.count, LENGTH, generator=draw) < 0.2
        holes[:, 0] = False
        self.mask = self.completion_mask & ~holes
        self.mask[list(self.dead)] = False
        shape = (self.count, LENGTH)
        # garbage off the mask on purpose: it must reach neither loss
        self.logp = (-3 * torch.rand(shape, generator=draw, dtype=torch.float64)).requires_grad_()
        noise = torch.randn((3, *shape), generator=draw, dtype=torch.float64)
        self.old = self.logp.detach() - self.spread * noise[0]
        self.ref = self.logp.detach() - 0.5 * noise[1]
        self.entropy = noise[2].abs()
        self.advantages = torch.randn(self.count, generator=draw, dtype=torch.float64)
        self.advantages[-1] = 0.0

    def theirs(self, trainer: str = "grpo", **options: Any) -> tuple[Tensor, Tensor]:
        """TRL's loss and its gradient."""
        given = {"completion_mask": self.completion_mask, "mask": self.mask, "advantages": self.advantages}
        value = stubs.loss(
            trainer,
            self.logp,
            **({"old_logp": self.old, "ref_logp": self.ref, "entropy": self.entropy} | given | options),
        )
        return value.detach(), torch.autograd.grad(value, self.logp)[0]

    def ours(self, recipe: str, *options: str, on_policy: bool = False, cuts: Any = None) -> tuple[Tensor, Tensor]:
        """The recipe's loss and its gradient."""
        old = self.logp.detach() if on_policy else self.old
        batch = make_batch(
            self.mask,
            group_ids=[i // 3 for i in range(self.count)],
            advantages=self.advantages,
            old_logp=old,
            behaviour_logp=old,
            ref_logp=self.ref,
        )
        batch.completion_mask = self.completion_mask
        value = ours.loss(batch, self.logp, recipe, *options, cuts=cuts, entropy=self.entropy)
        return value.detach(), torch.autograd.grad(value, self.logp)[0]


def assert_same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], rtol: float = 1e-9) -> None:
    assert a[1].abs().max() > 1e-4
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=1e-12)


@dataclass(frozen=True)
class Case:
    """A recipe and the options with which TRL means the same."""

    recipe: str
    trl: dict[str, Any]
    options: tuple[str, ...] = ()
    trainer: str = "grpo"
    spread: float = 0.3
    rtol: float = 1e-9


VESPO = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
SAPO = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
NO_KL = ("--model.aux_losses=null",)
CASES = {
    "grpo": Case("grpo", {"loss_type": "grpo", "beta": 0.04}),
    "grpo without KL": Case("grpo", {"loss_type": "grpo"}, NO_KL),
    "two-sided clip": Case(
        "grpo", {"loss_type": "grpo", "delta": 1.3}, (*NO_KL, "--model.clip_policy.cap=1.3"), spread=0.6
    ),
    # TRL's default since 1.0 where beta is not 0
    "k3 weighted by the ratio": Case(
        "grpo",
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True},
        ("--model.aux_losses.kl.ratio_weighted=true",),
    ),
    "dr_grpo": Case("dr_grpo", {"loss_type": "dr_grpo", "max_completion_length": LENGTH}),
    "dapo": Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo, one micro-batch": Case("dapo", {"loss_type": "bnpo", "epsilon_high": 0.28}),
    # TRL's epsilon_high is the bound itself here
    "cispo": Case(
        "cispo", {"loss_type": "cispo", "epsilon_high": 1.5}, ("--model.clip_policy.ratio_max=1.5",), spread=0.6
    ),
    # TRL's temperatures pass through float32
    "sapo": Case("sapo", {"loss_type": "sapo", **SAPO}, rtol=1e-6),
    "gspo": Case(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        spread=1e-3,
    ),
    "gspo, wide": Case(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        ("--model.clip_policy.low=0.2", "--model.clip_policy.high=0.2"),
    ),
    "luspo": Case(
        "luspo",
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon_low": 2e-3, "epsilon_high": 2.5e-3},
        spread=5e-3,
    ),
    "vespo": Case("vespo", {"loss_type": "vespo", **VESPO}),
    "gmpo": Case("gmpo", {"epsilon_low": 0.4, "epsilon_high": 0.4}, trainer="gmpo", spread=0.5),
    "high_entropy_tokens": Case(
        "high_entropy_tokens", {"loss_type": "dapo", "epsilon_high": 0.28, "top_entropy_quantile": 0.2}, rtol=1e-6
    ),
    "off-policy sequence mask": Case(
        "grpo",
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
        (*NO_KL, "--model.loss_weights.opsm=OffPolicySequenceMask", "--model.loss_weights.opsm.delta=0.05"),
    ),
    "clipped product ratio of RLOO": Case(
        "rloo",
        {},
        (
            "--model.ratio=SequenceSumRatio",
            "--model.surrogate=Clipped",
            "--model.clip_policy=FixedClip",
            "--model.aggregator=SequenceMean",
        ),
        trainer="rloo",
    ),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(name: str, seed: int) -> None:
    case = CASES[name]
    rows = Rows(seed, case.spread)
    assert_same(rows.ours(case.recipe, *case.options), rows.theirs(case.trainer, **case.trl), case.rtol)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "sapo", "cispo", "luspo"])
def test_micro_batches_that_cut_groups_change_nothing(name: str) -> None:
    case = CASES[name]
    rows = Rows(1, case.spread)
    whole = rows.theirs(case.trainer, **case.trl)
    assert_same(rows.ours(case.recipe, *case.options, cuts=[[0, 4], [1], [5, 2, 3]]), whole, case.rtol)


# ---- intended differences


def accumulated(rows: Rows, cuts: list[list[int]], **options: Any) -> Tensor:
    """TRL's gradient over several micro-batches of one update."""
    total = torch.zeros_like(rows.logp)
    for cut in cuts:
        value = stubs.loss(
            "grpo",
            rows.logp[cut],
            completion_mask=rows.completion_mask[cut],
            mask=rows.mask[cut],
            advantages=rows.advantages[cut],
            old_logp=rows.old[cut],
            current_gradient_accumulation_steps=len(cuts),
            **options,
        )
        total += torch.autograd.grad(value, rows.logp)[0]
    return total


def test_bnpo_depends_on_the_micro_batches_and_the_token_mean_does_not() -> None:
    rows, cuts = Rows(2), [[0, 1], [2, 3, 4, 5]]
    ours_cut = rows.ours("dapo", cuts=cuts)
    assert_same(ours_cut, rows.ours("dapo"))
    apart = accumulated(rows, cuts, loss_type="bnpo", epsilon_high=0.28)
    assert (apart - ours_cut[1]).abs().max() > 1e-3
    # each micro-batch is normalised by its own tokens and weighs the same
    for cut in cuts:
        share = int(rows.mask.sum()) / (len(cuts) * int(rows.mask[cut].sum()))
        torch.testing.assert_close(apart[cut], ours_cut[1][cut] * share, rtol=1e-9, atol=1e-12)


def test_f8_a_row_without_trained_tokens_does_not_count_as_a_sequence() -> None:
    rows = Rows(3, dead=(1, 4))
    for recipe, options in {
        "grpo": {"loss_type": "grpo"},
        "sapo": {"loss_type": "sapo", **SAPO},
        "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": LENGTH},
    }.items():
        value, gradient = rows.theirs(**options)
        # TRL divides by 6 rows, of which 4 have tokens
        mine = rows.ours(recipe, *(NO_KL if recipe == "grpo" else ()))
        assert_same(mine, (value * 6 / 4, gradient * 6 / 4), 1e-6)
    assert_same(rows.ours("dapo"), rows.theirs(loss_type="dapo", epsilon_high=0.28))


def test_f10_the_default_bound_of_cispo_is_no_fifth() -> None:
    rows = Rows(0)
    default = rows.theirs(loss_type="cispo", old_logp=rows.logp.detach())  # epsilon_high falls back to 0.2
    _, gradient = rows.ours("cispo", on_policy=True)
    torch.testing.assert_close(default[1], 0.2 * gradient, rtol=1e-9, atol=1e-12)


def test_f11_an_update_of_part_of_a_rollout_is_normalised_by_its_own_tokens() -> None:
    # 2 updates per rollout with 12 and 2 tokens, all advantages 1, on-policy: the token mean is -1 in both
    values = {}
    for tokens in (12, 2):
        logp = torch.zeros(1, tokens, dtype=torch.float64, requires_grad=True)
        one = torch.ones(1, tokens, dtype=torch.bool)
        theirs = stubs.loss(
            "grpo",
            logp,
            completion_mask=one,
            mask=one,
            advantages=torch.ones(1, dtype=torch.float64),
            tokens=14,
            loss_type="dapo",
            steps_per_generation=2,
        )
        batch = make_batch(one, advantages=[1.0], old_logp=logp.detach())
        values[tokens] = (theirs.item(), ours.loss(batch, logp, "dapo").item())
    # TRL: 14 tokens / 2 = 7 in both: -12 / 7 and -2 / 7
    assert values[12] == pytest.approx((-12 / 7, -1.0))
    assert values[2] == pytest.approx((-2 / 7, -1.0))


def test_reinforce_of_rloo_has_the_gradient_of_the_product_ratio_at_its_one_update() -> None:
    rows = Rows(0)
    value, gradient = rows.ours("rloo", on_policy=True)
    theirs = rows.theirs("rloo", old_logp=rows.logp.detach())
    torch.testing.assert_close(gradient, theirs[1], rtol=1e-9, atol=1e-12)
    # the values differ and mean nothing: -A * sum of logp here, -A there
    torch.testing.assert_close(theirs[0], -rows.advantages.mean())
    assert abs(value - theirs[0]) > 0.01
