import json
import math

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lit_group_rl.callbacks.samples import SampleTable, console_line, markdown, sample_groups

GROUPS = {"24+53=": [("77", 1.0), ("76", 0.0), ("77", 1.0), ("77", 1.0)], "1+1=": [("3", 0.0), ("3", 0.0)]}
EVALUATED = {"eval/heldout/accuracy": 0.5}


def test_rows_come_by_prompt_with_all_that_was_computed(make_rollout):
    first, second = sample_groups(make_rollout(GROUPS, truncated={"76"}), step=3)
    assert (first["step"], first["prompt"], first["answer"]) == (3, "24+53=", "77")
    assert [m["completion"] for m in first["members"]] == ["77", "76", "77", "77"]
    # advantage 2 * score - 1 on every trained token; the padding holds 9 and must not enter the mean
    assert first["members"][1] == {
        "completion": "76",
        "rewards": {"exact": 0.0},
        "total": 0.0,
        "advantage": -1.0,
        "solved": False,
        "length": 2,
        "end": "cut",
        "role": "policy",
    }
    assert first["members"][0]["end"] == "eos"
    assert [m["total"] for m in second["members"]] == [0.0, 0.0]


def test_the_table_has_a_row_per_completion(make_rollout):
    text = markdown(sample_groups(make_rollout({"2+2=": [("4", 1.0), ("5", 0.0)]}, answer="4"), 1))
    assert text.splitlines() == [
        "**2+2=** · answer 4 · group mean 0.50",
        "",
        "| completion | exact | total | advantage | length | end |",
        "|---|---:|---:|---:|---:|---|",
        "| 4 | 1 | 1 | +1.00 | 1 | eos |",
        "| 5 | 0 | 0 | -1.00 | 2 | eos |",
    ]


def test_hostile_text_stays_in_its_cell(make_rollout):
    text = markdown(sample_groups(make_rollout({"a|b\nc": [("x|y\n\x1b[2J<script>\ud800", 1.0), ("", 0.0)]}), 1))
    lines = text.splitlines()
    assert len(lines) == 6
    assert all(line.count("|") == 7 for line in lines[2:])
    assert "\x1b" not in text
    assert "<script>" not in text
    assert lines[5].startswith("| ∅ |")
    text.encode("utf-8")


def test_an_abstention_is_no_zero(make_rollout):
    batch = make_rollout({"q": [("a", math.nan), ("b", 1.0)]})
    group = sample_groups(batch, 1)[0]
    assert group["members"][0]["total"] is None
    assert "group mean 1.00" in markdown([group])
    assert "| a | - | - |" in markdown([group])


def test_a_chat_prompt_is_shown_with_its_roles(make_rollout):
    group = sample_groups(make_rollout({"q": [("a", 1.0)]}), 1)[0]
    group["prompt"] = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert console_line(group).startswith("system: Be brief\\nuser: Hi → a ✓1.0")


def test_the_console_line(make_rollout):
    group = sample_groups(make_rollout(GROUPS), 1)[0]
    assert console_line(group) == "24+53= → 77 ✓1.0  76 ✗0.0  77 ✓1.0  77 ✓1.0  group mean 0.75"
    group["members"] *= 3
    assert console_line(group).count("✓") + console_line(group).count("✗") == 8
    assert "…  group mean 0.75" in console_line(group)


def test_tables_after_the_first_step_every_twentieth_and_the_last(trainer, module, make_rollout, tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    trainer.loggers, module.steps = [logger], 45
    table = SampleTable(groups=1, file_groups=1, run_dir=tmp_path)
    table.on_metrics(trainer, module, 0, EVALUATED)
    module.last_batch = make_rollout(GROUPS)
    for step in range(1, 46):
        table.on_metrics(trainer, module, step, {})
    logger.finalize("success")
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(row["step"], row["prompt"]) for row in rows] == [(s, "24+53=") for s in (1, 20, 40, 45)]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    texts = events.Tensors("samples/train/text_summary")
    assert [e.step for e in texts] == [1, 20, 40, 45]
    assert texts[0].tensor_proto.string_val[0].decode() == markdown(sample_groups(module.last_batch, 1)[:1])


def test_the_console_shows_a_group_whose_members_differ(trainer, module, make_rollout, tmp_path, capsys):
    table = SampleTable(console_every=2, run_dir=tmp_path)
    module.last_batch = make_rollout(dict(reversed(GROUPS.items())))
    table.on_metrics(trainer, module, 20, EVALUATED)
    assert capsys.readouterr().out == ""
    table.on_metrics(trainer, module, 40, EVALUATED)
    assert capsys.readouterr().out == "  24+53= → 77 ✓1.0  76 ✗0.0  77 ✓1.0  77 ✓1.0  group mean 0.75\n"


def test_a_step_without_rows_writes_nothing(trainer, module, make_rollout, tmp_path, capsys):
    import torch

    module.last_batch = make_rollout(GROUPS).rows(torch.tensor([], dtype=torch.long))
    SampleTable(run_dir=tmp_path).on_metrics(trainer, module, 20, EVALUATED)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_folder_that_cannot_be_written_does_not_end_the_run(trainer, module, make_rollout, tmp_path):
    (tmp_path / "file").write_text("")
    module.last_batch = make_rollout(GROUPS)
    with pytest.warns(UserWarning, match=r"samples.jsonl could not write"):
        SampleTable(run_dir=tmp_path / "file").on_metrics(trainer, module, 1, {})


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"SampleTable\(every=0\): every must be at least 1"):
        SampleTable(every=0)


def test_a_resumed_run_drops_the_samples_that_it_draws_anew(trainer, module, make_rollout, tmp_path):
    table = SampleTable(every=1, file_groups=1, run_dir=tmp_path)
    module.last_batch = make_rollout(GROUPS)
    for step in (1, 2, 3):
        table.on_metrics(trainer, module, step, {})
    with open(tmp_path / "samples.jsonl", "a") as file:
        file.write('{"step": 1, "prom')  # the crash came here
    module.rl_step = 2
    SampleTable(run_dir=tmp_path).on_train_start(trainer, module)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_the_file_holds_more_groups_than_the_table(trainer, module, make_rollout, tmp_path):
    module.last_batch = make_rollout({f"{i}+{i}=": [("1", 1.0), ("2", 0.0)] for i in range(8)})
    SampleTable(groups=2, file_groups=5, run_dir=tmp_path).on_metrics(trainer, module, 1, {})
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["0+0=", "1+1=", "2+2=", "3+3=", "4+4="]


def test_a_file_that_grows_too_large_loses_every_second_step(trainer, module, make_rollout, tmp_path, monkeypatch):
    module.last_batch = make_rollout(GROUPS)
    table, path = SampleTable(every=1, run_dir=tmp_path), tmp_path / "samples.jsonl"
    table.on_metrics(trainer, module, 1, {})
    # room for four steps of this size and some more digits
    monkeypatch.setattr("lit_group_rl.callbacks.samples.FILE_LIMIT", 4 * path.stat().st_size + 20)
    for step in range(2, 8):
        table.on_metrics(trainer, module, step, {})
    # 1 2 3 4 5 -> 1 3 5 -> 1 3 5 6 7 -> 1 5 7
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 1, 5, 5, 7, 7]
