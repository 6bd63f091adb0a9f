"""Numbers that are not finite: skipped, then back once to the last good checkpoint, then the end."""

import math

import pytest
import torch

from lit_group_rl import checkpoint
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.numbers import FOLDER, KEPT_BATCHES, NumbersBroken
from lit_group_rl.surrogates import Clipped
from lit_group_rl.surrogates.base import Surrogate
from tests.tiny_runs import digest, fit, weights


class Breaks(Surrogate):
    """Clipped, but not a number in the updates that ``when`` names by their number from 1."""

    def __init__(self, when, value=math.nan):
        self.when, self.value, self.updates = when, value, 0

    def loss(self, ctx, bounds):
        self.updates += 1
        return Clipped().loss(ctx, bounds) * (self.value if self.when(self.updates) else 1.0)


def saving(folder):
    return [CheckpointCallback(str(folder), every=1)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_single_bad_updates_are_skipped_and_their_batches_kept(tmp_path, value):
    """Two updates a step: the second of each is bad, never three in a row."""
    module, log = fit(surrogate=Breaks(lambda n: n % 2 == 0, value), steps=5, callbacks=saving(tmp_path))
    assert torch.isfinite(weights(module)).all()
    assert log[5]["optim/skipped_total"] == 5
    assert module.numbers.rate == 1.0
    kept = sorted(p.name for p in (tmp_path / FOLDER).iterdir())
    assert kept == [f"step_{k:06d}_rank0.pt" for k in range(1, KEPT_BATCHES + 1)]
    batch = torch.load(tmp_path / FOLDER / kept[0], weights_only=True)
    assert len(batch["samples"]) == len(batch["completion_ids"]) > 0
    assert torch.isfinite(batch["advantages"]).all()


def test_three_in_a_row_go_back_with_half_the_learning_rate(tmp_path, caplog):
    """Updates 5, 6 (step 3) and 7 (step 4) are bad: back to the checkpoint of step 3, and on to the end."""
    module, log = fit(surrogate=Breaks(lambda n: n in (5, 6, 7)), steps=6, callbacks=saving(tmp_path))
    assert module.rl_step == 6
    assert "back to RL step 3 with half the learning rate" in caplog.text
    assert [log[s]["optim/lr"] for s in range(1, 7)] == [1e-3] * 3 + [5e-4] * 3
    assert log[6]["progress/updates"] == 12  # the broken-off step does not count
    assert checkpoint.newest(tmp_path).state["module"]["numbers"] == {"streak": 0, "rate": 0.5}


def test_what_went_back_resumes_with_the_halved_rate(tmp_path):
    fit(surrogate=Breaks(lambda n: n in (5, 6, 7)), steps=4, callbacks=saving(tmp_path))
    _, log = fit(steps=5, resume_from=tmp_path)
    assert log[5]["optim/lr"] == 5e-4


def test_going_back_leaves_nothing_of_what_was_broken_off(tmp_path):
    """The rest is the run that has half the rate from that checkpoint on: data position, counters, optimizer."""

    class Half(CheckpointCallback):
        def on_train_start(self, trainer, pl_module):
            pl_module.numbers.rate = 0.5

    back, log = fit(surrogate=Breaks(lambda n: n in (5, 6, 7)), steps=5, callbacks=saving(tmp_path / "a"))
    fit(surrogate=Breaks(lambda n: n in (5, 6)), steps=3, callbacks=saving(tmp_path / "b"))
    expected, expected_log = fit(steps=5, resume_from=tmp_path / "b", callbacks=[Half(str(tmp_path / "c"))])
    assert digest(back) == digest(expected)
    for tag in ("progress/prompts", "progress/updates", "optim/skipped_total", "reward/mean"):
        assert log[5][tag] == expected_log[5][tag]


@pytest.mark.parametrize("saved", [True, False])
def test_it_stops_when_going_back_does_not_help_or_there_is_nothing_to_go_back_to(tmp_path, saved):
    callbacks = saving(tmp_path) if saved else []
    why = "again after going back" if saved else "no checkpoint to go back to"
    with pytest.raises(NumbersBroken, match=why):
        fit(surrogate=Breaks(lambda n: n > 4), steps=6, callbacks=callbacks)
    assert NumbersBroken.exit_code == 3
    if saved:
        good = checkpoint.newest(tmp_path)
        assert all(torch.isfinite(w).all() for w in good.weights.values())
