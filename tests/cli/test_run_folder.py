"""Numbered run folders, names that stay inside, secrets that stay out."""

import pytest

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.refusal import Refusal


def with_checkpoint(folder):
    (folder / "checkpoints" / "step_000001").mkdir(parents=True)
    return folder


def test_each_run_takes_the_next_number(tmp_path):
    assert [run_folder.new_run(tmp_path, "grpo").name for _ in range(3)] == ["0001", "0002", "0003"]
    (tmp_path / "grpo" / "notes").mkdir()
    (tmp_path / "grpo" / "0041").mkdir()
    assert run_folder.new_run(tmp_path, "grpo").name == "0042"
    assert run_folder.new_run(tmp_path, "dapo").name == "0001"


def test_processes_that_a_run_starts_share_its_folder(tmp_path):
    first = run_folder.new_run(tmp_path, "grpo")
    assert run_folder.new_run(tmp_path, "grpo", rank=1) == first.resolve()
    assert [p.name for p in run_folder.runs(tmp_path, "grpo")] == ["0001"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "x" * 101, "a\nb", "..", "-x", "/etc"])
def test_a_name_cannot_leave_the_root(tmp_path, name):
    with pytest.raises(Refusal, match="run_name"):
        run_folder.new_run(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_resume_finds_runs_by_path_number_and_auto(tmp_path):
    one = with_checkpoint(run_folder.new_run(tmp_path, "grpo"))
    two = with_checkpoint(run_folder.new_run(tmp_path, "grpo"))
    run_folder.new_run(tmp_path, "grpo")  # has no checkpoint
    assert run_folder.find_run("auto", tmp_path, "grpo") == two
    assert run_folder.find_run("1", tmp_path, "grpo") == one
    assert run_folder.find_run(str(one), tmp_path, "grpo") == one
    assert run_folder.find_run(str(one / "checkpoints" / "step_000001"), tmp_path, "grpo") == one
    assert run_folder.find_run("auto", tmp_path, "dapo") is None
    with pytest.raises(Refusal, match=r"holds no checkpoint.*0002"):
        run_folder.find_run("3", tmp_path, "grpo")
    with pytest.raises(Refusal, match="does not exist"):
        run_folder.find_run(str(tmp_path / "nothing"), tmp_path, "grpo")


def test_a_resumed_run_keeps_its_first_configuration(tmp_path):
    assert run_folder.save_config(tmp_path, "a: 1\n").name == "config.yaml"
    assert run_folder.save_config(tmp_path, "a: 1\n").name == "config.yaml"
    assert run_folder.save_config(tmp_path, "a: 2\n").name == "config.2.yaml"
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"


def test_secrets_are_masked_by_the_name_of_their_key():
    values = {"hub": {"token": "t", "api_key": "k", "db_password": "p"}, "logger": [{"secret": "s"}]}
    assert run_folder.masked(values) == {
        "hub": {"token": "***", "api_key": "***", "db_password": "***"},
        "logger": [{"secret": "***"}],
    }
    harmless = {"max_new_tokens": 8, "micro_batch_tokens": 5, "token": None, "tokenizer": "x", "keyword": 1}
    assert run_folder.masked(harmless) == harmless
