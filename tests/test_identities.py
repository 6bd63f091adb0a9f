"""What must be equal whatever the numbers: recipes that are one another's special cases, changes without effect.

The expectation of an estimator is taken over all completions of an enumerable policy, each weighed by its chance.
"""

from __future__ import annotations

import math

import lightning.pytorch as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_group_rl.advantages import GroupRelative, LeaveOneOut, PassAtK
from lit_group_rl.aggregators import SequenceMean
from lit_group_rl.aux_losses import KL, PositiveNLL
from lit_group_rl.batching import counts, minibatches
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.module import LitGroupRL
from lit_group_rl.rewards import KLPenalty
from lit_group_rl.schedules import Clock
from tests.builders import make_batch, make_context
from tests.parity import ours
from tests.tiny_runs import recipe, weights

scores = st.lists(st.integers(-20, 20).map(lambda k: k / 8), min_size=6, max_size=6)
logits = st.lists(st.floats(-3, 3), min_size=4, max_size=4)
GROUPS = [0, 0, 0, 0, 1, 1]


def advantages(estimator, values, groups=GROUPS) -> Tensor:
    return estimator.estimate(make_batch(scores=list(values), group_ids=groups)).values[:, 0]


def gradient(batch, logp: Tensor, name: str, *options: str) -> tuple[Tensor, Tensor]:
    """A recipe's loss and its gradient with respect to the log-probs."""
    value = ours.loss(batch, logp, name, *options)
    return value.detach(), torch.autograd.grad(value, logp)[0]


def completions(seed: int, spread: float, equal_lengths: bool = False, values=(1.0, 0.0, 0.0, 2.0, 0.0, 1.0)) -> tuple:
    """A batch of two groups and log-probs that have moved by ``spread`` since it was drawn."""
    draw = torch.Generator().manual_seed(seed)
    logp = (-2 * torch.rand((6, 8), generator=draw, dtype=torch.float64)).requires_grad_()
    lengths = torch.full((6,), 8) if equal_lengths else torch.randint(1, 9, (6,), generator=draw)
    old = logp.detach() - spread * torch.randn((6, 8), generator=draw, dtype=torch.float64)
    mask = torch.arange(8)[None] < lengths[:, None]
    batch = make_batch(mask, scores=list(values), group_ids=GROUPS, old_logp=old, behaviour_logp=old, ref_logp=old)
    return batch, logp


def judged(batch, name: str, *options: str):
    """The batch with the advantages of a recipe."""
    batch.advantages = ours.module(name, *options).advantage.estimate(batch).values
    return batch


# ---- advantages


@given(scores, st.floats(-5, 5), st.floats(0, 0.95))
def test_a_moving_average_of_each_prompts_reward_changes_nothing(values, past: float, decay: float) -> None:
    # per prompt the mixture is affine in the reward, and a z-score within the group does not see that
    means = [past, past, past, past, -past, -past]
    mixed = [(1 - decay) * v + decay * m for v, m in zip(values, means, strict=True)]
    estimator = GroupRelative(eps=0.0)
    torch.testing.assert_close(advantages(estimator, mixed), advantages(estimator, values), rtol=1e-6, atol=1e-9)


@given(scores)
def test_leave_one_out_is_the_centred_score_times_g_over_g_minus_one(values) -> None:
    factor = torch.tensor([4 / 3] * 4 + [2 / 1] * 2, dtype=torch.float64)
    centred = advantages(GroupRelative(divide_by="none"), values)
    torch.testing.assert_close(advantages(LeaveOneOut(), values), factor * centred, rtol=1e-12, atol=1e-12)


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_pass_at_1_training_is_grpo(solved) -> None:
    batch = make_batch(scores=[float(s) for s in solved], group_ids=GROUPS, solved=solved)
    mine = PassAtK(k=1).estimate(batch).values
    torch.testing.assert_close(mine, GroupRelative(ddof=0, eps=0.0).estimate(batch).values, rtol=1e-9, atol=1e-9)


# ---- recipes that are one another's special cases


@pytest.mark.parametrize("seed", range(3))
def test_gspo_token_is_gspo_in_value_and_gradient_while_a_row_has_one_advantage(seed: int) -> None:
    batch, logp = completions(seed, spread=1e-3)
    mine = gradient(judged(batch, "gspo"), logp, "gspo")
    token = gradient(batch, logp, "gspo_token")
    assert (mine[1] == 0).any(1).any()  # some rows are clipped
    for a, b in zip(mine, token, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    # with an advantage per token they are two methods
    batch.advantages = batch.advantages * torch.linspace(0, 1, 8, dtype=torch.float64)
    wide = ("--model.clip_policy.low=1.0", "--model.clip_policy.high=9.0")
    assert not gradient(batch, logp, "gspo", *wide)[1].allclose(
        gradient(batch, logp, "gspo_token", *wide)[1], rtol=1e-3
    )


def test_luspo_is_gspo_times_the_length() -> None:
    batch, logp = completions(0, spread=1e-4)
    batch = judged(batch, "gspo")
    _, luspo = gradient(batch, logp, "luspo")
    _, gspo = gradient(batch, logp, "gspo", "--model.clip_policy.low=2e-3", "--model.clip_policy.high=2.5e-3")
    torch.testing.assert_close(luspo, gspo * batch.lengths[:, None], rtol=1e-9, atol=1e-12)


def test_gmpo_without_a_token_to_clip_is_gspo_without_a_row_to_clip() -> None:
    batch, logp = completions(0, spread=0.05)
    batch = judged(batch, "gspo")
    wide = ("--model.clip_policy.low=1.0", "--model.clip_policy.high=9.0")
    for a, b in zip(gradient(batch, logp, "gmpo"), gradient(batch, logp, "gspo", *wide), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_dr_grpo_is_grpo_without_the_two_divisions() -> None:
    batch, logp = completions(1, spread=0.3)
    _, grpo = gradient(judged(batch, "grpo"), logp, "grpo", "--model.aux_losses=null")
    _, dr_grpo = gradient(judged(batch, "dr_grpo"), logp, "dr_grpo")
    # rewards 1, 0, 0, 2 deviate by 1/4, -3/4, -3/4, 5/4: squares (1 + 9 + 9 + 25) / 16, over 3
    # rewards 0, 1 deviate by -1/2, 1/2: squares 1 / 4 + 1 / 4, over 1
    std = torch.tensor([math.sqrt(44 / 16 / 3)] * 4 + [math.sqrt(1 / 2)] * 2, dtype=torch.float64)
    undone = grpo * (std + 1e-6)[:, None] * (batch.lengths / 8)[:, None]  # the recipe divides by 8 tokens
    torch.testing.assert_close(dr_grpo, undone, rtol=1e-9, atol=1e-12)


def test_on_policy_rloo_is_dr_grpo_times_a_constant() -> None:
    batch, logp = completions(2, spread=0.0)
    _, dr_grpo = gradient(judged(batch, "dr_grpo"), logp, "dr_grpo")
    _, rloo = gradient(judged(batch, "rloo"), logp, "rloo")
    factor = torch.tensor([4 / 3] * 4 + [2 / 1] * 2, dtype=torch.float64)
    torch.testing.assert_close(rloo, 8 * factor[:, None] * dr_grpo, rtol=1e-9, atol=1e-12)


def test_completions_of_one_length_make_the_token_mean_a_sequence_mean() -> None:
    batch, logp = completions(3, spread=0.3, equal_lengths=True)
    batch = judged(batch, "grpo")
    same_clip = ("--model.aux_losses=null", "--model.clip_policy.high=0.28")
    for a, b in zip(gradient(batch, logp, "grpo", *same_clip), gradient(batch, logp, "dapo"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


# ---- expectations over an enumerable policy of one token


def expected(theta: Tensor, losses) -> Tensor:
    """sum over y of p(y) * d loss(y) / d theta, the chances themselves held fixed."""
    logp = theta.log_softmax(0)
    (gradient,) = torch.autograd.grad((logp.detach().exp() * losses(logp)).sum(), theta)
    return gradient


def leaf(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def terms(aux, logp: Tensor, ref: Tensor | None = None, solved=None) -> Tensor:
    """An auxiliary loss on one completion of each kind, one token long: [K]."""
    k = len(logp)
    tensors = {} if ref is None else {"ref_logp": ref[:, None]}
    solved = [True] * k if solved is None else solved
    batch = make_batch(rows=k, solved=solved, scores=[0.0] * k, old_logp=logp.detach()[:, None], **tensors)
    return torch.where(aux.selection(batch), aux.term(make_context(batch, logp[:, None])), 0.0)[:, 0]


def reverse_kl(theta: Tensor, ref: Tensor) -> Tensor:
    logp = theta.log_softmax(0)
    return torch.autograd.grad((logp.exp() * (logp - ref)).sum(), theta)[0]


def forward_kl(theta: Tensor, ref: Tensor) -> Tensor:
    logp = theta.log_softmax(0)
    return torch.autograd.grad((ref.exp() * (ref - logp)).sum(), theta)[0]


GRADIENTS = {
    ("k1", False): lambda theta, ref: torch.zeros_like(theta),
    ("k1", True): reverse_kl,
    ("k2", False): reverse_kl,
    ("k3", False): forward_kl,
    ("k3", True): reverse_kl,
    ("k1+", False): reverse_kl,
    ("k3+", False): reverse_kl,
}


@pytest.mark.parametrize(("estimator", "weighted"), GRADIENTS)
@settings(deadline=None)
@given(logits, logits)
def test_expected_gradient_of_each_estimator_as_a_loss(estimator: str, weighted: bool, policy, reference) -> None:
    theta, ref = leaf(policy), leaf(reference).log_softmax(0).detach()
    aux = KL(estimator=estimator, ratio_weighted=weighted)
    gradient = expected(theta, lambda logp: terms(aux, logp, ref))
    torch.testing.assert_close(gradient, GRADIENTS[estimator, weighted](theta, ref), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(logits, logits)
def test_k1_in_the_reward_has_the_gradient_of_the_reverse_kl(policy, reference) -> None:
    theta, ref = leaf(policy), leaf(reference).log_softmax(0).detach()
    logp = theta.log_softmax(0).detach()[:, None]
    batch = make_batch(rows=4, scores=[0.0] * 4, old_logp=logp, behaviour_logp=logp, ref_logp=ref[:, None])
    batch.token_rewards = KLPenalty(coef=1.0, estimator="k1").shape(batch, Clock(0, 1))
    batch.advantages = batch.totals[:, None]

    def reinforce(logp: Tensor) -> Tensor:
        module = ours.module("rloo")
        ctx = make_context(batch, logp[:, None])
        return module.surrogate.loss(ctx, module.clip_policy.bounds(ctx))[:, 0]

    torch.testing.assert_close(expected(theta, reinforce), reverse_kl(theta, ref), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(logits)
def test_imitating_all_of_its_own_samples_teaches_nothing(policy) -> None:
    gradient = expected(leaf(policy), lambda logp: terms(PositiveNLL(), logp))
    torch.testing.assert_close(gradient, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_imitating_the_selected_ones_does() -> None:
    # uniform over 4, the first is right: -1/4 * (onehot(0) - 1/4)
    gradient = expected(leaf([0.0] * 4), lambda logp: terms(PositiveNLL(), logp, solved=[True, False, False, False]))
    torch.testing.assert_close(gradient, torch.tensor([-3, 1, 1, 1], dtype=torch.float64) / 16)


# ---- the loop


class Automatic(LitGroupRL):
    """The same step with Lightning's automatic optimisation: one update, one model."""

    def __init__(self, **parts) -> None:
        super().__init__(**parts)
        self.automatic_optimization = True

    def improve(self, batch, bag: MetricBag) -> None:
        (index,) = minibatches(batch, 1, self.seed, self.rl_step, 0)
        batch = batch.rows(index)
        total, of_kl = counts([batch.mask, batch.mask], batch.group_ids)
        self.loss = self.total_loss(batch, total, {"kl": of_kl}, 1.0, bag)

    def training_step(self, prompts, batch_idx: int) -> Tensor:
        super().training_step(prompts, batch_idx)
        return self.loss


def trained(kind: type[LitGroupRL], steps: int = 4) -> Tensor:
    # a term on every row, so that none is left out of the forward; a norm that clips
    parts = {"aux_losses": {"kl": KL(coef=0.04)}, "aggregator": SequenceMean(), "minibatches": 1, "max_grad_norm": 0.05}
    module = kind(**recipe(**parts, steps=steps))
    data = PromptData(Addition(level=1), prompts_per_step=4, heldout_size=8, seed=1)
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(accelerator="cpu", max_epochs=1, **off).fit(module, datamodule=data)
    return weights(module)


@pytest.mark.filterwarnings("ignore")
def test_manual_optimisation_is_automatic_optimisation_to_the_bit() -> None:
    manual = trained(LitGroupRL)
    assert manual.equal(trained(Automatic))
    assert not manual.equal(trained(Automatic, steps=3))
