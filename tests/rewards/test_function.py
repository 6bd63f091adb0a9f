import asyncio
import sys

import pytest

from lit_group_rl.rewards import FunctionReward
from lit_group_rl.types import RecipeError, Sample

SOURCE = """
import asyncio
def by_name(completions, answers): return [float(c == a) for c, a in zip(completions, answers)]
def columns(level, completions): return level
def everything(**given): return [len(given)] * len(given["completions"])
def optional(completions, absent=None): return [0.5 if absent is None else 1.0 for _ in completions]
async def slow(completions):
    await asyncio.sleep(0)
    return [1.0 for _ in completions]
def nothing(): return []
def positional(completions, /): return []
def star(*completions): return []
value = 3
"""

SAMPLES = [Sample("p", "a", "a", {"level": 1}, 2, False), Sample("p", "b", "a", {"level": 2}, 2, False)]


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_rewards", None)


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("by_name", [1, 0]),
        ("columns", [1, 2]),
        ("everything", [5, 5]),  # prompts, completions, answers, samples, level
        ("optional", [0.5, 0.5]),
        ("slow", [1, 1]),
    ],
)
def test_arguments_by_name(name, scores):
    assert FunctionReward(f"own_rewards.{name}").score(SAMPLES) == scores


def test_colon_is_fine_and_async_runs_inside_a_loop():
    async def outer():
        return FunctionReward("own_rewards:slow").score(SAMPLES)

    assert asyncio.run(outer()) == [1, 1]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("by_name", ["dotted path", "module.function"]),
        ("absent_module.score", ["no module 'absent_module'", "absent_module.py"]),
        ("own_rewards.absent", ["has no 'absent'", "by_name"]),
        ("own_rewards.value", ["not a function", "by_name"]),
        ("own_rewards.nothing", ["takes no arguments", "completions"]),
        ("own_rewards.positional", ["cannot be given by name", "(completions, /)"]),
        ("own_rewards.star", ["cannot be given by name", "(*completions)"]),
    ],
)
def test_bad_functions_are_refused_when_built(path, words):
    with pytest.raises(RecipeError) as error:
        FunctionReward(path)
    for word in words:
        assert word in str(error.value)


def test_a_missing_column_is_refused_by_name():
    with pytest.raises(RecipeError, match=r"asks for level, but it is given prompts, completions, answers, samples"):
        FunctionReward("own_rewards.columns").score([Sample("p", "a", "a", {}, 2, False)])
