"""``samples`` on a hand-made file: order, choice, and what a terminal gets."""

import json
import subprocess
import sys

import pytest

from lit_group_rl.cli import samples
from lit_group_rl.cli.main import main


def member(completion, total, solved=None, length=1, **more):
    rewards = more.pop("rewards", {"exact": total})
    known = {"completion": completion, "rewards": rewards, "total": total, "advantage": 0.5, "solved": solved}
    return known | {"length": length, "end": "eos", "role": "policy"} | more


GROUPS = [
    {"step": 1, "prompt": "1+1=", "answer": "2", "members": [member("3", 0.0, False), member("2", 1.0, True)]},
    {
        "step": 20,
        "prompt": "8+8=",
        "answer": "16",
        "members": [
            member("16", 1.0, True, 2),
            member("17", 0.25, False, 9),
            member("x", None),
            member("16", 1.0, True),
        ],
    },
    {
        "step": 20,
        "prompt": [{"role": "user", "content": "tell\nme"}],
        "answer": None,
        "members": [
            member("a\nb\x1b[2J", -1.0, False, end="cut", rewards={"exact": 0.0, "brief": -1.0}),
            member("", 0.0, False, role="baseline", rewards={"exact": 0.0, "brief": None}),
        ],
    },
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "grpo" / "0001"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("steps: 20\n")
    (folder / "samples.jsonl").write_text("".join(json.dumps(g) + "\n" for g in GROUPS) + '{"step": 40, "pro')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return folder


def show(capsys, *argv):
    code = main(["samples", *argv])
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_the_last_step_best_first(run, capsys):
    # mean of the scored: (1 + 0.25 + 1) / 3 = 0.75 in the first group, (1 + 0.25 + 1 - 1 + 0) / 5 = 0.25 in all;
    # solved are 2 of the 5 that are judged
    assert show(capsys, "runs/grpo/0001").splitlines() == [
        "runs/grpo/0001 · step 20 of 1, 20 · 2 groups, 6 completions · reward 0.25 · solved 40%",
        "",
        "step 20 group 1  8+8= · answer 16 · group mean 0.75",
        "   1.00 ✓  +0.50     2 tok  16",
        "   1.00 ✓  +0.50     1 tok  16",
        "   0.25 ✗  +0.50     9 tok  17",
        "      -    +0.50     1 tok  x",
        "",
        "step 20 group 2  user: tell\\nme · group mean -0.50",
        "   0.00 ✗  +0.50     1 tok baseline  exact 0 brief -  ∅",
        "  -1.00 ✗  +0.50     1 tok cut  exact 0 brief -1  a\\nb\\x1b[2J",
    ]


def completions(text):
    return [line.split()[-1] for line in text.splitlines() if " tok" in line]


def test_order_and_choice(run, capsys):
    assert completions(show(capsys, "grpo", "--worst", "--n", "1")) == ["a\\nb\\x1b[2J", "∅"]
    assert completions(show(capsys, "grpo", "--group", "1", "--worst")) == ["17", "16", "16", "x"]
    assert completions(show(capsys, "grpo", "--group", "1", "--sort", "length")) == ["17", "16", "x", "16"]
    assert completions(show(capsys, "grpo", "--step", "19")) == ["2", "3"]
    assert "1 more groups: --n 0" in show(capsys, "grpo", "--n", "1")
    assert completions(show(capsys, "grpo", "--n", "0"))[-1] == "a\\nb\\x1b[2J"


def test_text_is_looked_for_in_all_steps(run, capsys):
    out = show(capsys, "0001", "--grep", "7")
    assert completions(out) == ["17"]
    # the mean is still that of the whole group
    assert "step 20 group 1  8+8= · answer 16 · group mean 0.75 · 1 of 4 shown" in out
    assert completions(show(capsys, "0001", "--grep", "1+1")) == ["2", "3"]
    assert "0 groups, 0 completions" in show(capsys, "0001", "--grep", "nowhere")


def test_a_group_is_shown_in_full(run, capsys):
    lines = show(capsys, "grpo", "--group", "2").splitlines()
    assert lines[3:5] == ["  │ user: tell", "  │ me"]
    assert lines[-2:] == ["      │ a", "      │ b\\x1b[2J"]


def test_long_completions_are_cut_to_the_width(run, capsys):
    (run / "samples.jsonl").write_text(json.dumps({**GROUPS[0], "members": [member("word " * 300, 1.0, True)]}))
    assert all(len(line) <= 100 for line in show(capsys, "grpo").splitlines())
    assert show(capsys, "grpo", "--full").count("word") == 300


def test_colour_only_on_a_terminal(run, capsys, monkeypatch):
    assert "\x1b" not in show(capsys, "grpo")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert samples.GREEN + "✓" in show(capsys, "grpo")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in show(capsys, "grpo")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["grpo", "--step", "0"], "--step: nothing is kept of step 0 or before. Kept: 1, 20."),
        (["grpo", "--group", "3"], "--group: there is no group 3 in step 20 of 1, 20."),
        (["grpo", "--wrost"], "unrecognized arguments: --wrost. Did you mean --worst?"),
        (["grpo", "--n", "-1"], "--n: must be at least 0, got -1."),
        (["gspo"], "gspo does not exist. Runs here: runs/grpo/0001."),
        (["0002"], "0002 does not exist. Runs here: runs/grpo/0001."),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_mistakes(run, capsys, argv, said):
    assert said in show(capsys, *argv)


def test_a_number_that_two_recipes_have_is_asked_back(run, capsys, tmp_path):
    other = tmp_path / "runs" / "dapo" / "0001"
    other.mkdir(parents=True)
    (other / "config.yaml").write_text("steps: 1\n")
    assert "Give one of runs/dapo/0001, runs/grpo/0001" in show(capsys, "1")
    assert "runs/dapo/0001 has no samples.jsonl" in show(capsys, "dapo")
    (other / "samples.jsonl").write_text("")
    assert "holds no group yet" in show(capsys, "dapo")


def test_no_torch_is_needed(run):
    code = (
        "import sys; from lit_group_rl.cli.main import main; assert main(['samples', 'grpo']) == 0; "
        "assert not {'torch', 'lightning', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=run.parents[2], capture_output=True)
