"""The greedy row of ReMax, and noise on the logits of the sampler, with a policy that can be computed by hand."""

from __future__ import annotations

import pytest
import torch

from lit_group_rl.advantages import GreedyBaseline
from lit_group_rl.loss_weights import RolloutIS
from lit_group_rl.samplers import GreedyRowSampler, GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import BASELINE, POLICY, Prompt
from tests.tiny_runs import fit

CLOCK = Clock(0, 1)
PROMPTS = [Prompt("1+1=", "2"), Prompt("10+20=", "30"), Prompt("3+4=", "7")]


@pytest.fixture(scope="module")
def policy() -> CharPolicy:
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    return policy


def test_one_greedy_row_stands_behind_each_group(policy: CharPolicy) -> None:
    sampler = GreedyRowSampler(group_size=2, max_new_tokens=5)
    batch = sampler.sample(policy, PROMPTS, [4, 5, 6], CLOCK, 1)
    assert batch.group_ids.tolist() == [4, 4, 4, 5, 5, 5, 6, 6, 6]
    assert batch.row_role.tolist() == [POLICY, POLICY, BASELINE] * 3
    assert len(set(batch.row_ids.tolist())) == 9
    greedy = batch.row_role == BASELINE
    assert not batch.mask[greedy].any()
    assert batch.mask[~greedy].any(1).all()
    likeliest = policy.decode(
        policy.generate(
            [policy.encode(p) for p in PROMPTS], copies=1, keys=[7, 8, 9], max_new_tokens=5, temperature=0.0
        ).ids.tolist()
    )
    shown = [s.completion for s, g in zip(batch.samples, greedy.tolist(), strict=True) if g]
    assert [text.startswith(s) for text, s in zip(likeliest, shown, strict=True)] == [True] * 3


def test_the_drawn_rows_are_those_without_it(policy: CharPolicy) -> None:
    with_row = GreedyRowSampler(group_size=2, max_new_tokens=5).sample(policy, PROMPTS, [0, 1, 2], CLOCK, 1)
    without = GroupSampler(group_size=2, max_new_tokens=5).sample(policy, PROMPTS, [0, 1, 2], CLOCK, 1)
    drawn = with_row.rows((with_row.row_role == POLICY).nonzero().flatten())
    assert [s.completion for s in drawn.samples] == [s.completion for s in without.samples]
    assert torch.equal(drawn.row_ids, without.row_ids)
    assert drawn.exact_logp == without.exact_logp


def test_a_run_learns_against_the_greedy_row() -> None:
    sampler = GreedyRowSampler(group_size=2, max_new_tokens=6)
    module, log = fit(steps=2, sampler=sampler, advantage=GreedyBaseline())
    batch = module.last_batch
    assert not batch.advantages[batch.row_role == BASELINE].any()
    # the score minus that of the third row of the group
    scores = batch.scores.view(-1, 3)
    expected = (scores - scores[:, 2:]).flatten()
    assert batch.advantages.amax(1).maximum(-batch.advantages.amin(1)).tolist() == pytest.approx(
        expected.abs().tolist()
    )
    assert log[2]["optim/update_to_weight"] > 0


def test_noisy_logits_are_recorded_as_they_were_drawn(policy: CharPolicy) -> None:
    def drawn(noise: float, positions=(0, 1, 2)):
        sampler = GroupSampler(group_size=3, max_new_tokens=6, logit_noise=noise)
        return sampler.sample(policy, [PROMPTS[i] for i in positions], list(positions), CLOCK, 1)

    plain, noisy = drawn(0.0), drawn(1.0)
    assert plain.exact_logp
    assert not noisy.exact_logp
    mask = noisy.completion_mask
    scored = policy.score(noisy).logp
    # the noise of a row is one draw per token of the vocabulary, the same at every place of the completion
    shift = (noisy.behaviour_logp - scored)[mask]
    assert float(shift.detach().std()) > 0.3
    first = (drawn(1.0, (2,)).completion_ids, drawn(1.0, (2,)).behaviour_logp)
    width = first[0].shape[1]
    assert torch.equal(noisy.completion_ids[6:, :width], first[0])
    torch.testing.assert_close(noisy.behaviour_logp[6:, :width], first[1])


def test_the_correction_knows_the_noise() -> None:
    weights = {"tis": RolloutIS(level="sequence", mode="truncate", cap=1e6)}
    sampler = GroupSampler(group_size=8, max_new_tokens=4, logit_noise=0.3)
    module, _ = fit(steps=1, sampler=sampler, loss_weights=weights)
    batch = module.last_batch
    ratio = ((batch.old_logp - batch.behaviour_logp) * batch.mask).sum(1).exp()
    # E of the ratio under the sampler is 1; 32 rows
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / len(ratio) ** 0.5
    assert float(ratio.std()) > 0.05
