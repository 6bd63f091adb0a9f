from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.rewards.extract import extract_answer, find_number, numbers


@pytest.mark.parametrize(
    ("text", "how", "answer"),
    [
        ("  77 \n", "whole", "77"),
        ("", "whole", ""),
        ("thinking\n\n 42 \n \n", "last_line", "42"),
        (" \n ", "last_line", None),
        ("<answer>41</answer> no, <answer> 42 </answer> bye", "answer_tag", "42"),
        ("<think>never closed <answer>4</answer>", "answer_tag", "4"),
        ("<answer>1 <answer>2</answer>", "answer_tag", "2"),
        ("<answer>4", "answer_tag", None),
        ("</answer>4<answer>", "answer_tag", None),
        ("24 + 53 is -77.", "last_number", "-77"),
        ("no digits", "last_number", None),
    ],
)
def test_extract(text, how, answer):
    """Known fault B51: what is extracted beside a tag that is never closed."""
    assert extract_answer(text, how) == answer


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2,500 and 2500", [2500, 2500]),
        ("0.50 .5 5e-1", [Fraction(1, 2)] * 3),
        ("1/2 and \\frac{1}{2}", [Fraction(1, 2)] * 2),
        ("-\\frac{3}{4}", [Fraction(-3, 4)]),
        ("24-53=-29", [24, 53, -29]),
        ("\N{MINUS SIGN}7", [-7]),
        ("**73** __74__ $75 76% 77kg", [73, 74, 75, 76, 77]),
        ("2{,}500", [2500]),
        ("答案42", [42]),
        ("x2 R2D2", []),
        ("nan inf -inf", []),
        ("1/0", [None]),
        ("1e9999", [None]),
        ("9" * 65, [None]),
        ("9" * 64, [10**64 - 1]),
        ("1,00", [1, 0]),  # no thousands: the comma separates
    ],
)
def test_numbers(text, values):
    assert numbers(text) == values


@pytest.mark.parametrize(
    ("text", "where", "value"),
    [
        ("so \\boxed{17}.", "auto", 17),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}} since 9", "auto", Fraction(1, 2)),
        ("\\boxed{41 or 42}", "auto", None),
        ("\\boxed{x} 42", "auto", None),
        ("\\boxed{42", "auto", 42),
        ("#### 42\n" + "and so on, all 9 of them. " * 16, "auto", 42),
        ("#### 41\n#### 42", "auto", 42),
        ("#### 41 or 42", "auto", None),
        ("####", "auto", None),
        ("Final Answer: **73**", "auto", 73),
        ("about 3 to 4", "last", 4),
        ("1,000", "whole", 1000),
        ("42.", "whole", 42),
        ("it is 42", "whole", None),
        ("42", "boxed", None),
        ("42", "marker", None),
    ],
)
def test_find_number(text, where, value):
    """Known faults B48 (bold), B49 (a marker far from the end; the last of two)."""
    assert find_number(text, where) == value


@given(st.text(alphabet="0123456789.,/-+eE \\boxed{}frac#<answer>\n", max_size=300))
@settings(max_examples=300, deadline=50)
def test_no_text_raises_or_takes_long(text):
    for how in ("whole", "last_line", "answer_tag", "last_number"):
        extract_answer(text, how)
    for where in ("auto", "boxed", "marker", "last", "whole"):
        find_number(text, where)


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_read_back(value):
    assert find_number(str(value)) == value


@pytest.mark.parametrize(
    "text", ["9" * 200_000, "1,111" * 40_000, "<answer>" * 20_000, "\\frac{" * 20_000, "{" * 200_000]
)
def test_long_texts_are_fast(text):
    import time

    start = time.perf_counter()
    extract_answer(text, "answer_tag")
    find_number(text)
    find_number("\\boxed" + text)
    assert time.perf_counter() - start < 2
