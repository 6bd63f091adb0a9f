import logging

import pytest

from lit_group_rl.data import ReasoningGym
from lit_group_rl.types import RecipeError

EASY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


@pytest.fixture(autouse=True)
def library():
    pytest.importorskip("reasoning_gym")


def test_questions_are_distinct_repeatable_and_carry_their_entry():
    source = ReasoningGym("chain_sum", EASY, train_size=40, instruction="Number only.")
    train, heldout = source.load(20)
    assert (train, heldout) == source.load(20)
    asked = [p.text[0]["content"] for p in train + heldout]
    assert len(set(asked)) == 60
    assert all(text.endswith("\nNumber only.") for text in asked)
    for p in heldout:
        question = p.fields["entry"]["question"]
        terms = question.split(":")[1].rstrip(" =")
        left, sign, right = terms.split()
        assert int(p.answer) == int(left) + int(right) * (1 if sign == "+" else -1)
        assert (p.fields["task"], p.fields["task_config"]) == ("chain_sum", EASY)
    assert isinstance(ReasoningGym("chain_sum", EASY, chat=False).load(1)[1][0].text, str)


def test_held_out_questions_do_not_depend_on_train_size():
    assert ReasoningGym("gcd", train_size=3).load(10)[1] == ReasoningGym("gcd", train_size=30).load(10)[1]


def test_a_task_that_is_too_small_is_refused():
    # one-digit chain sums of two terms: at most 2 signs x 9 x 9 or 10 x 10 questions
    with pytest.raises(RecipeError, match=r"data\.heldout_size: chain_sum .* 500 cannot be held out"):
        ReasoningGym("chain_sum", EASY).load(500)


@pytest.mark.parametrize(
    "task", ["codeio", "isomorphic_strings", "polynomial_multiplication", "ransom_note", "word_ladder"]
)
def test_tasks_of_the_hash_seed_are_refused(task):
    with pytest.raises(RecipeError, match=rf"data\.source\.task: {task} gives other questions in every process"):
        ReasoningGym(task).load(1)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(RecipeError, match=r"no task 'chain_sums'. Did you mean chain_sum\?"):
        ReasoningGym("chain_sums").load(1)
    with pytest.raises(RecipeError, match=r"data\.source\.config.*terms.*It has .*max_terms"):
        ReasoningGym("chain_sum", {"terms": 3}).load(1)
    with pytest.raises(RecipeError, match=r"data\.source\.config"):
        ReasoningGym("chain_sum", {"min_terms": 5, "max_terms": 2}).load(1)
    with pytest.raises(ValueError, match="must not set size"):
        ReasoningGym("chain_sum", {"size": 3})


def test_other_tasks_are_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        ReasoningGym("chain_sum", EASY, train_size=2).load(1)
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        ReasoningGym("coin_flip", train_size=2).load(1)
    assert "full marks" in caplog.text
    with caplog.at_level(logging.WARNING):
        ReasoningGym("simple_equations", train_size=2).load(1)
    assert "has not been checked" in caplog.text
