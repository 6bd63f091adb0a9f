"""Drawing old examples by their age."""

import torch

from lit_group_rl.functional.replay import draw_indices, replay_weights
from lit_group_rl.functional.rng import uniforms


def test_an_example_halves_with_every_half_life_and_ends_at_the_limit():
    weights = replay_weights(torch.tensor([0, 4, 8, 12, 13]), half_life=4, max_staleness=12)
    assert weights.tolist() == [1.0, 0.5, 0.25, 0.125, 0.0]


def test_draws_follow_the_weights():
    drawn = draw_indices(torch.tensor([1.0, 0.0, 3.0]), uniforms([7], 0, 40_000)[0])
    counts = torch.bincount(drawn, minlength=3).tolist()
    assert counts[1] == 0
    # binomial with p = 1/4: mean 10000, standard deviation sqrt(40000 * 3/16) = 87
    assert abs(counts[0] - 10_000) < 4 * 87


def test_the_edges_of_the_uniform_stay_inside():
    drawn = draw_indices(torch.tensor([0.0, 2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64))
    assert drawn.tolist() == [1, 2]
