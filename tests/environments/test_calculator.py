from fractions import Fraction

import pytest

from lit_group_rl.environments import Calculator, Turn
from lit_group_rl.environments.calculator import NoValue, evaluate, shown
from lit_group_rl.types import Prompt


def turn(said: str, prompt="12+30=", ended: bool = False) -> Turn:
    return Turn(Prompt(prompt), said, said, 0, ended, 0)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17+25", 42),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("10-4-3", 3),  # from the left: 6 - 3
        ("12/4/3", 1),
        ("-(2-5)", 3),
        (" 1 / 3 + 1 / 6 ", Fraction(1, 2)),
        ("0.1+0.2", Fraction(3, 10)),
    ],
)
def test_it_calculates_exactly(expression, value):
    assert evaluate(expression) == value


HUGE = "9" * 40


@pytest.mark.parametrize(
    "text",
    ["", "1+", "+1", "1 2", "(1", "1)", "1/0", "abs(1)", "2**3", "__import__('os')", "9" * 65, f"{HUGE}*{HUGE}"],
)
def test_what_is_no_sum_has_no_value(text):
    with pytest.raises(NoValue):
        evaluate(text)


def test_values_are_shown_as_one_would_write_them():
    assert shown(Fraction(42)) == "42"
    assert shown(Fraction(-3, 4)) == "-0.75"
    assert shown(Fraction(2, 3)) == "0.666667"


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        ("<17+25>", "42"),
        ("so <1><2*3>", "1"),  # a turn ends at its first call
        ("a<b<4-6>", "-2"),
        ("<1/0>", "?"),
        ("no call>", "?"),
        ("<>", "42"),  # of the question, 12 + 30
    ],
)
def test_a_call_is_answered_with_its_value(said, reply):
    assert Calculator().reply([turn(said)]) == [reply]


def test_an_empty_call_is_about_the_last_sum_of_the_question():
    assert Calculator().reply([turn("<>", "What is 3+4, and what 5*6?")]) == ["30"]
    assert Calculator().reply([turn("<>", [{"role": "user", "content": "2+2="}])]) == ["4"]
    assert Calculator().reply([turn("<>", "Who?")]) == ["?"]


def test_an_end_token_ends_the_episode():
    assert Calculator().reply([turn("42", ended=True), turn("<1>")]) == [None, "1"]


def test_bad_limits_are_refused():
    with pytest.raises(ValueError, match="max_turns"):
        Calculator(max_turns=0)
    with pytest.raises(ValueError, match="max_reply_tokens"):
        Calculator(max_reply_tokens=0)
