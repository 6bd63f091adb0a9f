"""``play`` on a run folder that was made by hand around the embedded policy."""

import io
import math
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_group_rl.cli import play
from lit_group_rl.tiny import TINY_FOLDER, TinyPolicy
from lit_group_rl.types import Prompt
from tests.made_runs import SHIFT, said

QUESTION = "17+25="


@pytest.fixture(scope="module")
def plain():
    """The same weights through transformers alone: (greedy completion, its log-probability at temperature 1)."""
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(SHIFT)
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    ids = tokenizer(QUESTION, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    logp = model(out).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
    new = out[0, ids.shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), float(logp.gather(1, new[:, None]).detach().sum())


def test_an_answer_with_its_probability(beside_a_run, capsys, plain):
    text, logp = plain
    code, out, _ = said(capsys, "play", "runs/grpo/0001", f"--prompt={QUESTION}", "--tokens")
    first, second = out.splitlines()
    assert code == 0
    assert first.startswith(f"{text}   (p = ")
    if math.exp(logp) >= 0.01:
        assert first == f"{text}   (p = {math.exp(logp):.2f})"
    each = [float(x) for x in second.split()[1::2]]
    assert math.prod(each) == pytest.approx(math.exp(logp), abs=0.05)
    assert "'<eos>'" in second


def test_lines_of_a_pipe_are_prompts_of_their_own(beside_a_run, capsys, plain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\n\n  \n1+\u00e9=\n{QUESTION}\n"))
    code, out, err = said(capsys, "play", "grpo")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 3)
    assert lines[0] == lines[2]
    assert lines[0].startswith(plain[0])
    assert "does not know '\u00e9'" in err
    assert "> " not in out


def test_several_are_drawn_and_repeat_by_seed():
    policy = TinyPolicy()
    policy.load()

    def ask(seed):
        return [a.text for a in play.ask(policy, Prompt(QUESTION), 16, temperature=1.0, limit=8, seed=seed)]

    first, again, other = ask(1), ask(1), ask(2)
    assert len(first) == 16
    assert len(set(first)) > 1
    assert first == again
    assert first != other
    [cut] = play.ask(policy, Prompt(QUESTION), 1, temperature=0.0, limit=1)
    assert (len(cut.tokens), cut.truncated) == (1, True)
    assert "cut at 1 tokens" in play.shown_answer(cut, False, 1)


def test_hostile_text_and_small_probabilities():
    answer = play.Answer("a\n\x1b[2J", -20.0, [("a", 0.5)] * 10, False)
    # e^-20 = 2.06e-9; e^(-20 / 10) = 0.135 a token
    assert play.shown_answer(answer, False, 10) == "a\n\\x1b[2J   (p = 2e-09, 0.14 a token)"
    assert play.shown_answer(play.Answer("", math.log(0.5), [], False), False, 1) == "∅   (p = 0.50)"
    # e^-2302.585 = 10^-1000 is below the smallest double
    assert play.probability(-2302.585) == "1e-1000"


def test_mistakes_of_play(beside_a_run, capsys):
    for argv, words in (
        (["--n=0"], "--n: must be at least 1, got 0."),
        (["--temperature=-1"], "--temperature: must be at least 0, got -1.0."),
        (["--n=2", "--temperature=0"], "--n: completions at temperature 0 are all the same."),
        (["--promt=a"], "Did you mean --prompt?"),
    ):
        code, out, err = said(capsys, "play", "grpo", *argv)
        assert (code, out) == (2, "")
        assert words in err
    code, out, err = said(capsys, "play", "grpo", "--prompt=" + "1" * 200)
    assert (code, out) == (0, "")
    assert "too long: 200 tokens" in err
