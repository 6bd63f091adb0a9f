import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.rewards import (
    ExactMatch,
    Format,
    KLPenalty,
    Length,
    NumericMatch,
    SoftOverlong,
    ThinkAnswerFormat,
)
from lit_group_rl.rewards.soft_overlong import soft_overlong
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Recipe, RecipeError, RolloutBatch, Sample


def sample(completion, answer=None, num_tokens=3):
    return Sample("24+53=", completion, answer, {}, num_tokens, False)


def one(reward, completion, answer=None):
    return reward.score([sample(completion, answer)])[0]


JUNK = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "None",
    "0123456789",
    "24+53=",
    "7" * 50,
    "<answer></answer>",
    "\\boxed{}",
    "####",
]


@pytest.mark.parametrize("reward", [ExactMatch(), NumericMatch(), NumericMatch(find="whole")])
@pytest.mark.parametrize("answer", ["77", "-3", "1,000", "1/2"])
def test_right_answer_pays_all_and_junk_nothing(reward, answer):
    assert one(reward, answer, answer) == 1
    assert [one(reward, junk, answer) for junk in JUNK] == [0] * len(JUNK)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_a_reward_or_pays_as_the_answer(text):
    for reward in (ExactMatch(), ExactMatch(extract="last_number"), NumericMatch()):
        assert one(reward, text, "8675309") in (0, 1)
    if "8675309" not in text:
        assert one(ExactMatch(extract="last_line"), text, "8675309") == 0
    for form in (Format(r".*#### -?[0-9]+"), ThinkAnswerFormat(), ThinkAnswerFormat(opened=True)):
        assert one(form, text) in (0, 1)


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_without_an_answer_exact_match_abstains(answer):
    assert one(ExactMatch(), "", answer) is None


@pytest.mark.parametrize("answer", [None, "", "five floors higher", "1/0"])
def test_without_a_number_numeric_match_abstains(answer):
    """Known fault B46."""
    assert one(NumericMatch(), "42", answer) is None


def test_exact_match_options():
    assert one(ExactMatch(), " Paris\n", "Paris") == 1
    assert one(ExactMatch(), "paris", "Paris") == 0
    assert one(ExactMatch(ignore_case=True), "STRASSE", "straße") == 1
    assert one(ExactMatch(extract="answer_tag"), "Paris", "Paris") == 0


def test_numeric_match_reads_solutions_on_both_sides():
    assert one(NumericMatch(), "first 6*7.\n#### 42", "He has 6*7=42 apples.\n#### 42") == 1
    assert one(NumericMatch(), "0.3", "0.30") == 1
    assert one(NumericMatch(), "0.30000001", "0.3") == 0


def test_numeric_tolerance_is_inclusive():
    # |10.5 - 10| = 0.5; 5 % of 10 is 0.5
    assert one(NumericMatch(tolerance=0.5), "10.5", "10") == 1
    assert one(NumericMatch(tolerance=0.25), "10.5", "10") == 0
    assert one(NumericMatch(relative=0.0625), "10.5", "10") == 1
    assert one(NumericMatch(relative=0.03125), "10.5", "10") == 0
    with pytest.raises(ValueError, match="tolerance"):
        NumericMatch(tolerance=-1)


def test_format_matches_across_lines_and_as_a_whole():
    """Known fault B50."""
    form = Format(r"<think>.+</think>\s*<answer>.+</answer>")
    assert one(form, "<think>a\nb\n</think>\n<answer>4</answer>") == 1
    assert one(form, "so <think>a</think><answer>4</answer>") == 0
    with pytest.raises(ValueError, match=r"pattern.*not a regular expression"):
        Format("(")


@pytest.mark.parametrize(
    ("text", "opened", "score"),
    [
        ("<think>a\nb</think>\n<answer>4</answer>\n", False, 1),
        ("a</think><answer>4</answer>", True, 1),
        ("a</think><answer>4</answer>", False, 0),
        ("<think>a</reason><answer>4</answer>", False, 0),  # closed by another tag
        ("<think>a <answer>4</answer>", False, 0),  # never closed
        ("<think>a</think><answer>4</answer><answer>5</answer>", False, 0),
        ("<think>a</think>so<answer>4</answer>", False, 0),
        ("<think> </think><answer>4</answer>", False, 0),
        ("<think>a</think><answer> </answer>", False, 0),
        ("<answer>4</answer><think>a</think>", False, 0),
        ("<think>a<answer>b</think>4</answer>", False, 0),
        ("", False, 0),
    ],
)
def test_think_answer(text, opened, score):
    """Known faults B50, B51."""
    assert one(ThinkAnswerFormat(opened=opened), text) == score


def test_length_falls_on_both_sides():
    # full score in 4..6; 2 tokens below 4 of a falloff of 4 leave 1/2; 8 is 2 above 6
    reward = Length(longest=6, shortest=4, falloff=4)
    scores = reward.score([sample("", num_tokens=n) for n in (0, 2, 4, 6, 8, 10, 50)])
    assert scores == [0, 0.5, 1, 1, 0.5, 0, 0]
    with pytest.raises(ValueError, match="longest"):
        Length(longest=3, shortest=4)


def batch_of_lengths(lengths, limit=0):
    width = max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    ids = torch.ones(len(lengths), width, dtype=torch.long)
    rows = torch.arange(len(lengths))
    return RolloutBatch(
        ids,
        mask,
        ids,
        mask,
        mask.clone(),
        rows,
        rows,
        rows < 0,
        1.0,
        torch.zeros(ids.shape),
        [],
        rows * 0,
        max_new_tokens=limit,
    )


LENGTHS = [15, 16, 17, 18, 20, 25]
PENALTIES = [0, 0, -0.25, -0.5, -1, -1]
# limit 20, buffer 4: nothing up to 16, then -(length - 16) / 4, never below -1


def test_soft_overlong_ends_at_the_limit():
    assert soft_overlong(torch.tensor(LENGTHS), 20, 4).tolist() == PENALTIES


@pytest.mark.parametrize("buffer", [4, 0.2])
def test_soft_overlong_shapes_by_the_sampler_limit_or_its_own(buffer):
    """Known fault B28: 0 up to the limit without the buffer, -1 at the limit itself; a factor scales all."""
    clock = Clock(0, 1)
    assert SoftOverlong(buffer=buffer).shape(batch_of_lengths(LENGTHS, 20), clock).tolist() == PENALTIES
    assert SoftOverlong(buffer=buffer, limit=20).shape(batch_of_lengths(LENGTHS), clock).tolist() == PENALTIES
    halved = SoftOverlong(buffer=buffer, coef=0.5).shape(batch_of_lengths(LENGTHS, 20), clock)
    assert halved.tolist() == [p / 2 for p in PENALTIES]


@pytest.mark.parametrize("options", [{"buffer": 0}, {"buffer": 21, "limit": 20}, {"buffer": 4.5}, {"limit": 0}])
def test_soft_overlong_refuses(options):
    """Known fault B29: no buffer, or one above the limit."""
    with pytest.raises(ValueError, match="SoftOverlong"):
        SoftOverlong(**options)


def test_soft_overlong_without_any_limit_is_refused():
    """Known fault B29: switched on without a limit."""
    with pytest.raises(RecipeError, match=r"model\.shapers.*Set SoftOverlong\.limit"):
        SoftOverlong().shape(batch_of_lengths([3]), Clock(0, 1))


@pytest.mark.parametrize(
    ("shaper", "warning"), [(SoftOverlong(buffer=65), False), (SoftOverlong(limit=100), True), (SoftOverlong(), None)]
)
def test_soft_overlong_checks_the_sampler(shaper, warning):
    sampler = GroupSampler(group_size=4, max_new_tokens=64)
    recipe = Recipe.__new__(Recipe)
    object.__setattr__(recipe, "parts", {"sampler": sampler})
    problems = list(shaper.checks(recipe))
    assert [p.warning for p in problems] == ([] if warning is None else [warning])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # d = old - ref = 0.5: k1 0.5, k2 0.125, k3 exp(-0.5) - 0.5 = 0.106531; times -0.1
        ("k1", -0.05),
        ("k2", -0.0125),
        ("k3", -0.0106531),
        ("abs", -0.05),
    ],
)
def test_kl_penalty_per_token(estimator, expected):
    batch = batch_of_lengths([2, 1])
    batch.old_logp = torch.tensor([[-1.0, -1.0], [-1.0, torch.nan]])
    batch.ref_logp = torch.full((2, 2), -1.5)
    shaped = KLPenalty(coef=0.1, estimator=estimator).shape(batch, Clock(0, 1))
    torch.testing.assert_close(
        shaped, torch.tensor([[expected] * 2, [expected, 0.0]], dtype=torch.float64), atol=1e-7, rtol=0
    )
