"""What the evaluator says, as a reward."""

import pytest
import torch

from lit_group_rl.rewards import EvaluatorScore
from tests.builders import make_batch


def test_it_pays_the_feature_and_abstains_on_what_was_not_read():
    batch = make_batch(rows=2)
    assert EvaluatorScore().score_batch(batch) == [None, None]
    batch.features["evaluator"] = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert EvaluatorScore().score_batch(batch) == [0.25, 0.75]


def test_a_reward_with_gradient_is_a_fault():
    batch = make_batch(rows=1)
    batch.features["evaluator"] = torch.tensor([0.5], requires_grad=True)
    with pytest.raises(AssertionError, match="nothing may flow"):
        EvaluatorScore().score_batch(batch)
