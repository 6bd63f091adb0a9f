"""``export`` of a run folder that was made by hand around the embedded policy."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_group_rl.cli.main import main
from lit_group_rl.tiny import TINY_FOLDER
from tests.made_runs import SHIFT, make_run, said


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_the_best_checkpoint_leaves_with_a_card(beside_a_run, capsys, tmp_path):
    code, out, _ = said(capsys, "export", "runs/grpo/0001", str(tmp_path / "mine"))
    assert code == 0
    assert "a whole model, after RL step 1 of runs/grpo/0001" in out
    start, end = weights(TINY_FOLDER), weights(tmp_path / "mine")
    assert start.keys() == end.keys()
    for name, value in start.items():
        torch.testing.assert_close(end[name], value + SHIFT, rtol=0, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "mine")("17+25=").input_ids
    text = (tmp_path / "mine" / "README.md").read_text()
    assert "| base model (RL step 0) | 25.0% |\n| these (RL step 1) | 50.0% |" in text


def test_the_last_checkpoint(beside_a_run, capsys, tmp_path):
    code, out, _ = said(capsys, "export", "grpo", str(tmp_path / "mine"), "--checkpoint=last")
    assert (code, "after RL step 2 of" in out) == (0, True)
    name = "model.norm.weight"
    torch.testing.assert_close(
        weights(tmp_path / "mine")[name], weights(TINY_FOLDER)[name] + 3 * SHIFT, rtol=0, atol=1e-6
    )


def test_a_lora_run_leaves_merged_or_as_an_adapter(capsys, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "lora" / "0001", "policy/lora")
    assert main(["export", "lora", "merged"]) == 0
    code, out, _ = said(capsys, "export", "lora", "adapter", "--adapter")
    assert (code, "a LoRA adapter, after RL step 1" in out) == (0, True)
    names = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= names
    assert "model.safetensors" not in names
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 16
    assert "library_name: peft" in (tmp_path / "adapter" / "README.md").read_text()
    assert weights(tmp_path / "merged").keys() == weights(TINY_FOLDER).keys()


def test_mistakes_of_export(beside_a_run, capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for argv, words in (
        (["runs/grpo/0001", str(tmp_path / "full")], ["exists and is not empty", "Give a new folder."]),
        (["runs/grpo/0001", str(tmp_path / "out"), "--adapter"], ["there is no adapter", "Leave out --adapter."]),
        (["runs/grpo/0001"], ["arguments are required: DIR"]),
        (["runs/grpo/0009", str(tmp_path / "out")], ["runs/grpo/0009 does not exist", "Runs here: runs/grpo/0001"]),
    ):
        code, out, err = said(capsys, "export", *argv)
        assert (code, out) == (2, "")
        assert [w for w in words if w not in err] == []
        assert len(err.splitlines()) == 1
    empty = tmp_path / "runs" / "grpo" / "0001"
    empty.mkdir(parents=True)
    shutil.copy(beside_a_run / "runs" / "grpo" / "0001" / "config.yaml", empty)
    assert "holds no checkpoint" in said(capsys, "play", str(empty))[2]
