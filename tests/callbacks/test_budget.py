"""A run that ends by completions."""

import pytest

from lit_group_rl.callbacks import CompletionBudget
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.evaluation import HeldOut
from tests.tiny_runs import fit

HELD, DONE = "eval/heldout/accuracy", "progress/completions"


def test_the_step_that_reaches_the_budget_is_the_last_and_is_evaluated():
    # 4 prompts x 4 = 16 completions a step: 40 are reached by the third of 9, which is no multiple of 2
    module, logged = fit(callbacks=[CompletionBudget(40)], steps=9, heldout=HeldOut(every=2))
    assert module.rl_step == 3
    assert logged[3][DONE] == 48
    assert [step for step, row in logged.items() if HELD in row] == [0, 2, 3]


def test_a_budget_that_steps_do_not_reach_changes_nothing():
    module, _ = fit(callbacks=[CompletionBudget(1000)], steps=2)
    assert module.rl_step == 2


def test_a_run_that_was_ended_after_its_last_step_makes_no_further_one(tmp_path):
    callbacks = [CompletionBudget(32), CheckpointCallback(str(tmp_path), every=1)]
    module, _ = fit(callbacks=callbacks, steps=9)
    assert module.rl_step == 2
    again, logged = fit(resume_from=tmp_path, callbacks=[CompletionBudget(32)], steps=9)
    assert again.rl_step == 2
    assert logged == {}
    # with a larger budget it goes on: 50 are reached by the fourth step
    further, _ = fit(resume_from=tmp_path, callbacks=[CompletionBudget(50)], steps=9)
    assert further.rl_step == 4


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        CompletionBudget(0)
