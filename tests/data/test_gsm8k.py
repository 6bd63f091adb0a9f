"""The overlay data/gsm8k on a hand-made folder in GSM8K's form: what is read, and which completions are right."""

import json

import pytest

from lit_group_rl.cli.compose import compose, options_of
from lit_group_rl.data import HFDataset
from lit_group_rl.types import Sample

ROWS = [
    ("Ann has 3 boxes of 4 pens. How many pens?", "3 boxes hold 3*4=<<3*4=12>>12 pens.\n#### 12"),
    ("A car costs $20000 and $1500 tax. The price?", "20000+1500=<<20000+1500=21500>>21500\n#### 21,500"),
    ("It is 5 degrees and falls by 8. How cold is it?", "5-8=<<5-8=-3>>-3\n#### -3"),
    ("Half of a dozen eggs?", "12/2=<<12/2=6>>6\n#### 6"),
    ("Bob pays 2.50 twice. How much?", "2*2.5=<<2*2.5=5>>5\n#### 5"),
    ("How many days have 2 weeks?", "2*7=<<2*7=14>>14\n#### 14"),
]
COMPLETIONS = [
    ("12", "3*4 = 12\n#### 12", 1.0),
    ("12", "3*4 = 12\n#### 13", 0.0),
    ("12", "12 pens, and then\n#### 3", 0.0),
    ("12", "I do not know.", 0.0),
    ("12", "", 0.0),
    ("21,500", "#### 21500", 1.0),
    ("21,500", "#### $21,500", 1.0),
    ("21,500", "#### 21", 0.0),
    ("-3", "#### -3", 1.0),
    ("-3", "#### 3", 0.0),
    ("6", "#### 12/2", 1.0),
    ("5", "#### 5.00", 1.0),
    ("14", "the answer is\n\n#### 14 days", 1.0),
]


@pytest.fixture
def overlay(tmp_path):
    for split, rows in (("train", ROWS[:4]), ("test", ROWS[4:])):
        lines = (json.dumps({"question": q, "answer": a}) for q, a in rows)
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    return compose(["grpo", "data/gsm8k"])


def test_questions_and_answers(overlay, tmp_path):
    options = options_of(overlay.at("data.source"))
    train, heldout = HFDataset(**options | {"name": str(tmp_path)}).load(10)
    assert [p.answer for p in train] == ["12", "21,500", "-3", "6"]
    assert [p.answer for p in heldout] == ["5", "14"]
    assert train[0].place == "train.jsonl line 1"
    [message] = train[0].text
    assert message["role"] == "user"
    assert message["content"].startswith(ROWS[0][0] + "\nThink step by step.")


def test_right_and_wrong_completions(overlay):
    pytest.importorskip("math_verify")
    from lit_group_rl.rewards import MathVerify

    reward = MathVerify(**options_of(overlay.at("model.rewards.exact")))
    samples = [Sample("", text, answer, {}, 8, False) for answer, text, _ in COMPLETIONS]
    assert list(zip(COMPLETIONS, reward.score(samples), strict=True)) == [(c, c[2]) for c in COMPLETIONS]
