"""The parts of VAPO together."""

import pytest

from lit_group_rl.advantages import GAE
from lit_group_rl.aux_losses import PositiveNLL
from lit_group_rl.critics import ValueModel
from tests.tiny_runs import fit


def test_the_weight_of_the_imitation_term_reaches_the_loss():
    """Known fault B68: the rewards never came to the loss, so the term did nothing."""

    def first_step(coef):
        terms = {"positive_nll": PositiveNLL(coef=coef)}
        _, log = fit(
            critic=ValueModel(), advantage=GAE(critic_lam=1.0, length_alpha=0.05), aux_losses=terms, steps=1,
            minibatches=1,
        )  # fmt: skip
        return log[1]

    without, with_term = first_step(0.0), first_step(0.1)
    assert with_term["reward/accuracy"] > 0
    assert with_term["loss/positive_nll"] > 0.1
    assert with_term["loss/total"] - without["loss/total"] == pytest.approx(
        0.1 * with_term["loss/positive_nll"], abs=1e-6
    )
