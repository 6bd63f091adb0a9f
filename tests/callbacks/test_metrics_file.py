import math

import pytest

from lit_group_rl.callbacks.metrics_file import MetricsFile, read_metrics


def test_rows_are_on_disk_at_once_and_read_back_exactly(tmp_path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"eval/heldout/accuracy": 0.25}, step=0)
    log.log_metrics({"reward/mean": 0.1 + 0.2, "time/step": 1.5}, step=1)
    assert read_metrics(tmp_path / "metrics.csv") == {
        0: {"eval/heldout/accuracy": 0.25},
        1: {"reward/mean": 0.1 + 0.2, "time/step": 1.5},
    }


def test_a_new_tag_adds_a_column_and_keeps_the_rows(tmp_path):
    log = MetricsFile(tmp_path)
    for step in (1, 2):
        log.log_metrics({"reward/mean": float(step)}, step=step)
    log.log_metrics({"reward/mean": 3.0, "eval/heldout/accuracy": 0.5}, step=3)
    log.log_metrics({"reward/mean": 4.0}, step=4)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["step,reward/mean,eval/heldout/accuracy", "1,1.0,", "2,2.0,", "3,3.0,0.5", "4,4.0,"]


def test_two_calls_for_a_step_make_one_row(tmp_path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"reward/mean": 1.0}, step=1)
    log.log_metrics({"mine/number": 2.0}, step=1)
    assert read_metrics(tmp_path / "metrics.csv") == {1: {"reward/mean": 1.0, "mine/number": 2.0}}


def test_a_resumed_run_keeps_what_came_before_its_checkpoint_and_makes_the_rest_anew(tmp_path):
    first = MetricsFile(tmp_path)
    for step in range(1, 8):
        first.log_metrics({"reward/mean": float(step)}, step=step)
    second = MetricsFile(tmp_path)  # the checkpoint is of step 5
    second.log_metrics({"reward/mean": 60.0}, step=6)
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [rows[s]["reward/mean"] for s in sorted(rows)] == [1.0, 2.0, 3.0, 4.0, 5.0, 60.0]


def test_a_line_cut_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,b\n1,1.0,2.0\n2,3.0,4.12", encoding="utf-8")
    assert read_metrics(path) == {1: {"a": 1.0, "b": 2.0}}


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,a,b\n1,1.0,2.0\n2,3.0\nx,1.0,1.0\n\xff\xfe\n3,5.0,6.0\n")
    assert read_metrics(path) == {1: {"a": 1.0, "b": 2.0}, 3: {"a": 5.0, "b": 6.0}}
    path.write_text("", encoding="utf-8")
    assert read_metrics(path) == {}


def test_nan_and_infinity_come_back(tmp_path):
    MetricsFile(tmp_path).log_metrics({"a": math.nan, "b": -math.inf}, step=1)
    row = read_metrics(tmp_path / "metrics.csv")[1]
    assert math.isnan(row["a"])
    assert row["b"] == -math.inf


def test_after_a_full_disk_no_row_is_missing(tmp_path, monkeypatch):
    log = MetricsFile(tmp_path)
    log.log_metrics({"a": 1.0}, step=1)
    real = MetricsFile._text
    monkeypatch.setattr(MetricsFile, "_text", lambda self, steps: (_ for _ in ()).throw(OSError("full")))
    for step in (2, 3):
        with pytest.raises(OSError, match="full"):
            log.log_metrics({"a": float(step)}, step=step)
    monkeypatch.setattr(MetricsFile, "_text", real)
    log.log_metrics({"a": 4.0}, step=4)
    assert {s: r["a"] for s, r in read_metrics(tmp_path / "metrics.csv").items()} == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
