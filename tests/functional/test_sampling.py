"""Draws against the distributions they come from."""

import pytest
import torch

from lit_group_rl.functional.rng import uniforms
from lit_group_rl.functional.sampling import BLOCK, choose, draw, truncate


def test_truncation_gives_the_filtered_law():
    """Known fault B37: probabilities .5, .3, .2 with top-p .7 keep two tokens: log(.5/.8), log(.3/.8)."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    kept = truncate(logits, top_p=0.7, top_k=0).log_softmax(-1)
    torch.testing.assert_close(kept[0, :2], torch.tensor([-0.4700, -0.9808]), atol=1e-4, rtol=0)
    assert kept[0, 2] == float("-inf")
    assert truncate(logits, top_p=1.0, top_k=1)[0].isfinite().tolist() == [True, False, False]
    assert truncate(logits, top_p=0.01, top_k=0)[0].isfinite().tolist() == [True, False, False]


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    u = uniforms(range(20000), 0, 1)[:, 0]
    drawn = draw(probabilities.expand(20000, 4), u)
    share = torch.bincount(drawn, minlength=4) / 20000
    assert share[1] == 0
    # four standard errors of a share of 0.6 over 20000 draws: 4 * sqrt(0.24 / 20000) = 0.0139
    torch.testing.assert_close(share, probabilities, atol=0.0139, rtol=0)


def test_the_edges_of_the_uniform_never_draw_an_impossible_token():
    p = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).expand(2, 4)
    assert draw(p, torch.tensor([0.0, 1.0 - 2**-53])).tolist() == [1, 2]


def test_a_large_vocabulary_draws_the_token_at_its_place_of_the_cumulative_sum():
    """Token k of n = 5 blocks + 3 with weight proportional to k + 1: the sum up to k is (k + 1)(k + 2) / 2."""
    n = 5 * BLOCK + 3
    p = torch.arange(1, n + 1, dtype=torch.float64)
    p = (p / p.sum()).float()
    wanted = torch.tensor([0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 17, 5 * BLOCK - 1, 5 * BLOCK, n - 1])
    middle = (wanted * (wanted + 1) / 2 + (wanted + 1) / 2) / (n * (n + 1) / 2)
    assert draw(p.expand(len(wanted), n), middle.double()).tolist() == wanted.tolist()


def test_a_large_vocabulary_never_draws_an_impossible_token():
    p = torch.zeros(3, 6 * BLOCK)
    p[:, [BLOCK + 5, 4 * BLOCK + 7]] = 0.5
    ends = torch.tensor([0.0, 0.5, 1.0 - 2**-53])
    assert draw(p, ends).tolist() == [BLOCK + 5, 4 * BLOCK + 7, 4 * BLOCK + 7]


@pytest.mark.parametrize("size", [7, 5 * BLOCK])
@pytest.mark.parametrize("top_k", [0, 3])
def test_log_prob_and_entropy_are_those_of_the_distribution(size, top_k):
    logits = 5 * torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    token, logp, entropy = choose(logits.clone(), torch.linspace(0, 0.99, 6), temperature=0.7, top_k=top_k)
    kept = logits.double() / 0.7
    if top_k:
        kept[kept < kept.topk(top_k).values[:, -1:]] = float("-inf")
    law = torch.distributions.Categorical(logits=kept)
    torch.testing.assert_close(logp.double(), law.log_prob(token), atol=1e-5, rtol=0)
    expected = torch.special.entr(law.probs).sum(-1)
    torch.testing.assert_close(entropy.double(), expected, atol=1e-5, rtol=0)


def test_the_likeliest_token_has_its_log_prob_at_temperature_one():
    """Logits 0, 2: log p = -log(1 + e^-2) = -0.126928, entropy = 0.365334 (p = .880797)."""
    token, logp, entropy = choose(torch.tensor([[0.0, 2.0]]), None, temperature=0.0)
    assert token.tolist() == [1]
    assert logp.item() == pytest.approx(-0.126928, abs=1e-6)
    assert entropy.item() == pytest.approx(0.365334, abs=1e-6)
