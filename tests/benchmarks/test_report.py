"""The benchmark's own arithmetic, and that its two sides are given the same work."""

import pytest

from benchmarks.meter import Meter
from benchmarks.report import curves_png, limit_share, pairs, table
from benchmarks.workloads import WORKLOADS, Workload, as_text, make_prompts, make_tokenizer, reward


def line(side, pair, tokens, memory, seconds=1.0):
    return {
        "kind": "pair", "key": ["W1", pair], "side": side, "tokens_per_cpu_s": tokens, "rss_growth_mb": memory,
        "cycle_cpu_s": seconds, "phase_cpu_s": {"rollout": 0.5, "rest": 0.25},
    }  # fmt: skip


LINES = [
    line("ours", 0, 400.0, 100.0),
    line("trl", 0, 100.0, 300.0, 9.0),
    line("trl", 1, 80.0, 500.0, 11.0),
    line("ours", 1, 480.0, 100.0),
    line("ours", 2, 500.0, 100.0),  # its partner is missing: no pair
]


def test_ratios_are_medians_of_the_pairs_ratios():
    """Throughput 4 and 6: median 5; memory 3 and 5: median 4; TRL's seconds 9 and 11: 10."""
    assert len(pairs(LINES, "W1")) == 2
    row = table(LINES, {"W1": (4.0, 2.5)}).splitlines()[2]
    assert "| W1 | 2 | 10.0 / 1.0 | 90 / 440 | **5.0** (4) | 400 / 100 | **4.0** (2.5) |" in row


def test_share_of_the_limit():
    """0.5 GFLOP per token at 440 tokens per second are 220 GFLOP/s... of a peak of 880: a quarter."""
    lines = [
        *LINES,
        {"kind": "flops", "key": "W1", "gflop": 50.0, "tokens": 100},
        {"kind": "peak", "key": "mm", "gflops": 880.0},
    ]
    assert limit_share(lines, "W1", [o for o, _ in pairs(lines, "W1")]) == pytest.approx(0.25)


def test_curves_are_drawn(tmp_path):
    lines = [
        {"kind": "curve", "key": ["group size", n], "side": side, "cycle_cpu_s": float(n)}
        for n in (4, 8)
        for side in ("ours", "trl")
    ]
    curves_png(lines, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[1:4] == b"PNG"


def test_text_of_a_prompt_is_its_ids_again():
    w = Workload(model="tiny")
    prompts = make_prompts(w, 6)
    assert [make_tokenizer(w)(as_text(p)).input_ids for p in prompts] == prompts
    assert [p[0] % 4 for p in prompts] == [0, 1, 2, 3, 0, 1]
    assert not {i for p in prompts for i in p} & set(w.stop_ids)


def test_the_stop_ids_give_the_wanted_mean_length():
    """4096 ids, mean 48: 4096 / 48 = 85.3 stop ids, hazard 85 / 4096 = 1 / 48.2."""
    assert len(WORKLOADS["W1"].stop_ids) == 85
    # 151936 / 32 = 4748
    assert len(WORKLOADS["W3"].stop_ids) == 4748


def test_rewards_of_a_sparse_workload():
    w = Workload(reward="sparse")
    assert [reward(w, [k], [3]) for k in (100, 101, 102)] == [0.0, 1.0, 1.0]
    assert reward(w, [102], [2]) == 0.0
    assert reward(Workload(), [0], [2, 3, 4]) == pytest.approx(2 / 3)


def test_nested_phases_are_taken_off_their_parent(monkeypatch):
    """Clock 0, 1, 3, 6: the inner phase takes 3 - 1 = 2, the outer 6 - 2 = 4."""
    ticks = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr("time.process_time", lambda: next(ticks))
    meter = Meter()
    with meter.phase("outer"), meter.phase("inner"):
        pass
    assert meter.cpu == {"inner": 2.0, "outer": 4.0}
