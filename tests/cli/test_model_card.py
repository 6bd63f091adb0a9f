"""The model card from hand-made runs: what it claims, and what it does not."""

import datetime
import importlib.metadata

import pytest
import yaml

from lit_group_rl.cli import model_card
from lit_group_rl.cli.compose import compose

HELDOUT = "eval/heldout/accuracy"
METRICS = {0: {HELDOUT: 0.25}, 20: {HELDOUT: 0.5, "progress/completions": 5120.0}, 40: {HELDOUT: 0.375}}
DAY = datetime.date(2026, 3, 1)


def config(*overlays, **policy):
    values = compose(["grpo", *overlays]).values
    if policy:
        values["model"]["policy"] = {"class_path": "lit_group_rl.policy.HFPolicy", "init_args": policy}
    return values


def card(tmp_path, values=None, metrics=METRICS, step=20, which="best", adapter=False):
    text = model_card.card(values or config(), metrics, tmp_path / "grpo" / "0001", "mine", step, which, adapter, DAY)
    front, _, body = text.removeprefix("---\n").partition("\n---\n")
    return yaml.safe_load(front), body


def test_what_the_run_knows_stands_there(tmp_path):
    front, body = card(tmp_path)
    assert front["license"] == "apache-2.0"
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-generation")
    assert "base_model" not in front
    assert "# mine\n" in body
    assert "recipe `grpo` (GRPO: group relative policy optimisation." in body
    assert "| base model (RL step 0) | 25.0% |" in body
    assert "| these (RL step 20) | 50.0% |" in body
    assert "best of 3 evaluations on the same prompts" in body
    assert "up to 256 held-out prompts" in body
    assert "| RL steps | 20 of 260 |" in body
    assert "| completions | 5120 (32 prompts x 8 per RL step) |" in body
    assert "| date | 2026-03-01 |" in body
    assert f"torch {importlib.metadata.version('torch')}" in body
    block = body.partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(block) == config()


def test_what_was_not_measured_is_not_claimed(tmp_path):
    _, body = card(tmp_path, metrics={})
    assert "Held-out accuracy was not measured at the exported step." in body
    assert "| completions | not known" in body
    # not the best one, so nothing flatters it
    _, body = card(tmp_path, step=40, which="last")
    assert "| these (RL step 40) | 37.5% |" in body
    assert "evaluations on the same prompts" not in body


def test_a_base_of_the_hub(tmp_path):
    front, body = card(tmp_path, config(path="org/name", system_prompt="Be brief"))
    assert front["base_model"] == "org/name"
    assert "license" not in front
    assert "see <https://huggingface.co/org/name>" in body
    assert "System message: 'Be brief'." in body


@pytest.mark.parametrize(
    ("files", "licence", "words"),
    [
        ({"README.md": "---\nlicense: mit\nbase_model: org/old\n---\n"}, "mit", ["mit, as the model card", "org/old"]),
        ({"README.md": "---\n: [\n---\n", "LICENSE": "..."}, None, ["came with a licence file"]),
        ({"README.md": "no front matter"}, None, ["Unknown: the files of the base model state none."]),
    ],
)
def test_the_licence_of_a_folder_is_what_its_files_state(tmp_path, files, licence, words):
    base = tmp_path / "secret" / "base"
    base.mkdir(parents=True)
    for name, content in files.items():
        (base / name).write_text(content)
    front, body = card(tmp_path, config(path=str(base)))
    assert front.get("license") == licence
    assert [w for w in words if w not in body] == []
    # folders of this machine stand in the configuration only
    assert "secret" not in body.partition("## Configuration")[0]


def test_the_licence_of_a_package_is_what_it_says_of_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"held": ["a-model"]})
    told = {"license": "Apache-2.0\nand the whole text of it"}
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: type("Metadata", (), {"json": told}))
    values = config(path="package:held", gguf_file="a.gguf")
    assert "Apache-2.0, as the Python package a-model says of itself." in card(tmp_path, values)[1]
    told.update(license="", classifier=["Topic :: X", "License :: OSI Approved :: MIT License"])
    front, body = card(tmp_path, values, adapter=True)
    assert "MIT License, as the Python package a-model says of itself." in body
    assert front["library_name"] == "peft"
    assert "# BASE_MODEL: the model in the Python package `held` (`a.gguf`)" in body
    assert "from_pretrained('BASE_MODEL', gguf_file='a.gguf')" in body
    told.clear()
    assert "Unknown: the Python package held states none." in card(tmp_path, values)[1]


def test_the_form_of_a_prompt_is_told(tmp_path):
    _, body = card(tmp_path, config("data/gsm8k", path="org/name", chat=True))
    assert "through the tokenizer's chat template" in body
    assert "Behind every prompt, on a line of its own: 'Think step by step." in body
    assert "`HFDataset(" in body
