"""Junk that is right by chance is told from junk that a reward pays."""

from types import SimpleNamespace

import pytest

from lit_group_rl.cli.check_reward import check_rewards
from lit_group_rl.rewards import ExactMatch
from lit_group_rl.types import Prompt, RecipeError


def prompts(own_last_number: int) -> list[Prompt]:
    """64 sums, of which as many as told have their own last number as the answer; no answer comes twice."""
    rows = []
    for i in range(64):
        a = 0 if i < own_last_number else 200
        rows.append(Prompt(f"{a} + {100 + i} =", answer=str(a + 100 + i)))
    return rows


def check(own_last_number: int) -> list[str]:
    said: list[str] = []
    report = SimpleNamespace(row=lambda *words: said.append(" ".join(words)))
    data = SimpleNamespace(heldout=prompts(own_last_number), train=[])
    check_rewards({"exact": ExactMatch(extract="last_number")}, data, report)
    return said


def test_the_prompt_is_right_now_and_then():
    # one in ten, and two deviations of 64 rows: 0.1 + 2 sqrt(0.1 * 0.9 / 64) = 0.175, which is 11.2 of 64
    assert "junk at most 0.17 (the prompt)" in check(11)[0]


def test_the_prompt_is_right_too_often_to_be_chance():
    with pytest.raises(RecipeError, match=r"the prompt 0\.19 \(19% counts as solved\)"):
        check(12)
