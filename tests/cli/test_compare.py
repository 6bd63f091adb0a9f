"""``compare``: command line, refusals, reports of hand-made run folders, and one comparison for real."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import pytest

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compare import OWN, parse
from lit_group_rl.cli.main import main

HELD = "eval/heldout/accuracy"
COLUMNS = [
    "step", "progress/completions", "progress/tokens", HELD, "policy/entropy", "group/zero_std_frac", "length/mean",
    "loss/total", "optim/grad_norm", "time/step", "time/eval", "perf/peak_mem_gb",
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without their pictures, which take most of the time."""
    from lit_group_rl.cli import compare_figure

    monkeypatch.setattr(compare_figure, "png", lambda comparison, path: path.touch())
    monkeypatch.setattr(compare_figure, "svg", lambda comparison: "<svg></svg>")


def make_run(here, name, number, seed, accuracies, change=("", ""), grad=1.0, per_step=100):
    """A run folder of ``per_step`` completions a step, evaluated after every step, from 0 on."""
    folder = here / "runs" / name / f"{number:04d}"
    folder.mkdir(parents=True)
    text = catalog.files("recipes")[name].read_text()
    assert change[0] in text
    (folder / "config.yaml").write_text(text.replace("seed: 1", f"seed: {seed}").replace(*change))
    rows = [[0, "", "", accuracies[0], "", "", "", "", "", "", 1.0, ""]]
    for step, accuracy in enumerate(accuracies[1:], 1):
        done = step * per_step
        rows.append([step, done, 4 * done, accuracy, 0.5, 0.25, 3.0, 0.1, grad, 2.0, 1.0, 0.5])
    with open(folder / "metrics.csv", "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    summary = {"recipe": name, "rl_steps": len(rows) - 1, "completions": (len(rows) - 1) * per_step}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def run(capsys, *argv):
    code = main(["compare", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def cells(text, start):
    """The cells of the Markdown row that begins with ``start``."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_runs_that_are_there_are_compared_without_running(here, capsys):
    for seed, (a, b) in enumerate([([0.2, 0.4, 0.6], [0.2, 0.6, 0.9]), ([0.2, 0.5, 0.7], [0.2, 0.6, 0.8])], 1):
        make_run(here, "grpo", seed, seed, a)
        make_run(here, "dapo", seed, seed, b)
    code, out, _ = run(capsys, "runs/grpo", "runs/dapo/0001", "runs/dapo/0002", "--out=made")
    assert code == 0
    assert {p.name for p in (here / "made").iterdir()} == {"report.html", "report.md", "curves.png", "curves.csv"}
    text = (here / "made" / "report.md").read_text()
    # 0.6 and 0.7: mean 65, deviation sqrt(2 * 25) = 7.1; area of 0.2, 0.4, 0.6 is 0.4, and of 0.2, 0.5, 0.7 it is
    # (0.35 + 0.6) / 2 = 0.475: mean 43.75, deviation 5.3; live groups are 1 - 0.25
    row = ["grpo", "65.0 ± 7.1", "not reached", "43.8 ± 5.3", "0.50 ± 0.00", "75.0 ± 0.0", "3.0 ± 0.0", "0 of 2"]
    assert cells(text, "grpo") == row
    # 0.8 is reached two thirds of the way from 0.6 at 100 to 0.9 at 200, and at 200: mean of 166.7 and 200
    assert cells(text, "dapo")[:3] == ["dapo", "85.0 ± 7.1", "183"]
    # differences 0.3 and 0.1: mean 0.2, deviation 0.1414, half width 12.706 * 0.1414 / sqrt 2 = 1.2706
    assert cells(text, "dapo - grpo, accuracy")[1:] == ["+20.0", "[-107.1, +147.1]", "2", "no difference seen"]
    assert "dapo - grpo: +20.0 points, 95 % interval [-107.1, +147.1], 2 paired seeds: no difference seen." in text
    # seconds: two steps of 2 and three evaluations of 1
    cost = text[text.index("## Cost") :]
    assert cells(cost, "grpo") == ["grpo", "2.00", "2", "200", "800", "7", "0.50"]
    assert cells(text, "`model.clip_policy.high`")[1:] == ["0.2", "0.28"]
    assert "runs/dapo/0002" in text
    assert re.search(r"dapo - grpo +\+20\.0 +\[-107\.1, \+147\.1\] +2 +no difference seen", out)
    assert "differs in  dapo: filter MixedOutcome (none)" in out
    with open(here / "made" / "curves.csv") as file:
        rows = list(csv.DictReader(file))
    assert {
        "recipe": "grpo",
        "seed": "2",
        "quantity": "held-out accuracy",
        "completions": "100",
        "value": "0.5",
    } in rows
    # 2 sides x 2 seeds x (3 evaluations and 3 numbers of 2 steps)
    assert len(rows) == 2 * 2 * (3 + 3 * 2)


def test_the_page_needs_nothing_from_elsewhere(here, capsys):
    make_run(here, "grpo", 1, 1, [0.2, 0.4])
    folder = make_run(here, "dapo", 1, 1, [0.2, 0.6])
    (folder / "summary.json").write_text(json.dumps({"recipe": "a<b>&c"}))
    assert run(capsys, "runs/grpo/0001", "runs/dapo/0001", "--out=made")[0] == 0
    page = (here / "made" / "report.html").read_text()
    assert "<script" not in page
    assert not re.search(r"""(src|href)="(?!#)|url\((?!#)|@import|<link""", page)
    assert set(re.findall(r"https?://[^/\"]+", page)) == {"http://www.w3.org"}  # names of XML, fetched by nobody
    assert '<td><i style="background:#d55e00"></i>a&lt;b&gt;&amp;c</td>' in page
    assert "a<b>" not in page
    assert page.count("currentColor") > 20
    assert "prefers-color-scheme: dark" in page
    assert "one seed: no interval" in page


def test_runs_of_unequal_length_are_read_where_the_shortest_ends(here, capsys, undrawn):
    make_run(here, "grpo", 1, 1, [0.2, 0.4])
    make_run(here, "dapo", 1, 1, [0.2, 0.6], per_step=250)
    _, out, _ = run(capsys, "runs/grpo", "runs/dapo", "--out=made")
    assert "note: all are read at 100 completions" in out
    text = (here / "made" / "report.md").read_text()
    # at 100 of 250 completions: 0.2 + 0.4 * 0.4 = 0.36
    assert cells(text, "dapo")[1] == "36.0"
    assert "all are read at 100 completions, where the shortest run ends" in text


def test_other_settings_under_one_name_are_another_side_and_a_repeated_seed_counts_once(here, capsys, undrawn):
    make_run(here, "grpo", 1, 1, [0.2, 0.4])
    make_run(here, "grpo", 2, 1, [0.2, 0.9], change=("coef: 0.04", "coef: 0.01"))
    make_run(here, "grpo", 3, 1, [0.2, 0.5])
    run(capsys, "runs/grpo", "--out=made")
    text = (here / "made" / "report.md").read_text()
    assert cells(text, "grpo")[1] == "50.0"
    assert cells(text, "grpo/0002")[1] == "90.0"
    assert cells(text, "`model.aux_losses.kl.coef`")[1:] == ["0.04", "0.01"]
    assert "grpo, seed 1: runs/grpo/0001 has the same settings as runs/grpo/0003, which counts" in text


def test_names_that_a_run_writes_in_full_are_no_difference_and_numbers_that_end_alike_are(here, capsys, undrawn):
    make_run(here, "grpo", 1, 1, [0.2, 0.4])
    full = "  optimizer: lit_group_rl.module.adamw\n  max_grad_norm: 5.0"
    make_run(here, "grpo", 2, 1, [0.2, 0.9], change=("  max_grad_norm: 1.0", full))
    run(capsys, "runs/grpo", "--out=made")
    text = (here / "made" / "report.md").read_text()
    assert cells(text, "`model.max_grad_norm`")[1:] == ["1.0", "5.0"]
    assert "optimizer" not in text


def test_divergence_is_counted_and_unlike_tasks_are_said(here, capsys, undrawn):
    make_run(here, "grpo", 1, 1, [0.2, 0.4], grad=float("nan"))
    make_run(here, "dapo", 1, 1, [0.2, 0.6], change=("level: 2", "level: 1"))
    code, _, _ = run(capsys, "runs/grpo", "runs/dapo", "--out=made")
    text = (here / "made" / "report.md").read_text()
    assert code == 0
    assert cells(text, "grpo")[-1] == "1 of 1"
    assert "**not the same task, data or start weights: data.source.level: 2 in grpo, 1 in dapo**" in text


EASIER = "data: {source: {class_path: Addition, init_args: {level: 1}}}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["grpo"], "compare: takes two recipes or runs, got 1 (grpo). For example"),
        (["grpo", "grpo"], "compare: 'grpo' is given twice. Name each once; variants of one recipe are RECIPE+OVERLAY"),
        (["grpo", "scale/smoke"], "'scale/smoke' is an overlay, not a recipe. Give it to all with --config="),
        (["grpo", "drgpo"], "'drgpo' is neither a file, a recipe nor an overlay. Did you mean 'dr_grpo'?"),
        (["grpo", "dapo+easier.yaml"], "data.source.level: 2 in grpo, 1 in dapo+easier. Compare recipes with the same"),
        (["grpo", "sft_warmup"], "model.policy: TinyPolicy in grpo, "),
        (["grpo", "rloo", "--seed=3"], "--seed: is decided by the comparison. Give --seeds."),
        (["grpo", "rloo", "--seeds=0"], "--seeds: '0' is no whole number above 0. For example --seeds=3."),
        (["grpo", "rloo", "--seeds=1,1"], "--seeds: '1,1' is no list of different seeds. For example --seeds=1,2,7."),
        (["grpo", "rloo", "--job=2"], "--job: is no option of compare. Did you mean 'jobs'?"),
        (["grpo", "rloo", "--steps=2", "--completions=9"], "--completions: and --steps both set the budget"),
        (["grpo", "rloo", "--target=80"], "--target: '80' is no share. Give a number above 0 and at most 1"),
        (["grpo", "rloo", "--model.heldout=null"], "model.heldout: grpo evaluates no held-out prompts"),
        (["grpo", "rloo", "--model.lerning_rate=1"], "Did you mean 'learning_rate'?"),
        (["grpo", "empty"], "compare: empty holds no metrics.csv of a run. Give runs/NAME/NNNN"),
    ],
)  # fmt: skip
def test_refusals_name_field_and_fix_before_anything_is_run(here, capsys, argv, said):
    (here / "easier.yaml").write_text(EASIER)
    (here / "empty").mkdir()
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (here / "compare").exists()


def test_an_overlay_for_all_makes_tasks_alike(here, capsys, monkeypatch):
    from lit_group_rl.cli import compare, compare_runs

    (here / "easier.yaml").write_text(EASIER)

    class Stop(Exception):
        pass

    def begin(matrix):
        raise Stop([job.command() for job in matrix.jobs])

    monkeypatch.setattr(compare, "_run", begin)
    with pytest.raises(Stop) as stop:
        run(capsys, "grpo", "dapo+easier.yaml", "--config=easier.yaml", "--seeds=4,2", "--steps=3")
    commands = stop.value.args[0]
    assert [c[1:4] for c in commands[:2]] == [
        ["grpo", "easier.yaml", "--steps=3"],
        ["dapo", "easier.yaml", "easier.yaml"],
    ]
    assert [next(w for w in c if w.startswith("--seed=")) for c in commands] == ["--seed=4"] * 2 + ["--seed=2"] * 2
    assert compare_runs.BUDGET in " ".join(commands[0])


@pytest.mark.parametrize(
    ("argv", "completions", "steps"),
    [
        # grpo has 260 steps of 32 x 8 completions
        (["grpo", "ppo"], 260 * 256, [260, 260]),
        (["grpo", "ppo", "--steps=20"], 20 * 256, [20, 20]),
        # 1000 completions: 4 steps of 256, or 8 of 128
        (["grpo", "grpo+small.yaml", "--completions=1000"], 1000, [4, 8]),
        (["grpo+small.yaml", "grpo", "--steps=3"], 3 * 128, [3, 2]),
    ],
)
def test_the_budget_is_in_completions(here, capsys, monkeypatch, argv, completions, steps):
    from lit_group_rl.cli import compare

    (here / "small.yaml").write_text("model: {sampler: {init_args: {group_size: 4}}}\n")
    plans = []
    monkeypatch.setattr(compare, "_run", lambda matrix: plans.extend(matrix.jobs))
    monkeypatch.setattr(compare, "_report", lambda *_: 0)
    run(capsys, *argv, "--seeds=1")
    assert [job.completions for job in plans] == [completions] * 2
    assert [job.steps for job in plans] == steps


class Pretended:
    """Runs that end at once: what they leave, or the reason why they fail."""

    def __init__(self, here, outcomes):
        self.here, self.outcomes = here, outcomes

    def __call__(self, job, at_once):
        outcome = self.outcomes[job.arm.name, job.seed]
        code = 0
        if isinstance(outcome, str):
            (job.home / "log.txt").write_text(outcome)
            code = 3
        else:
            made = make_run(self.here, "grpo", 90 + len(list(self.here.glob("runs/grpo/*"))), job.seed, outcome)
            made.rename(job.home / "0001")
        return type("Ended", (), {"poll": lambda self: code})()


def test_recipes_beside_a_folder_with_a_run_that_fails(here, capsys, monkeypatch, undrawn):
    from lit_group_rl.cli import compare, compare_runs

    make_run(here, "grpo", 1, 1, [0.2, 0.3, 0.4], per_step=128)
    make_run(here, "grpo", 2, 2, [0.2, 0.3, 0.4], per_step=128)
    outcomes = {("rloo", 1): [0.2] + [0.9] * 6, ("rloo", 2): "stopped: it did not go well\n"}
    starter = Pretended(here, outcomes)
    monkeypatch.setattr(compare, "Matrix", lambda jobs, n: compare_runs.Matrix(jobs, n, starter=starter, pause=0))
    line = ["runs/grpo", "rloo", "--seeds=2", "--completions=512", "--out=made"]
    code, out, _ = run(capsys, *line)
    assert code == 1
    assert "equal budget: 512 completions each (at most 2 RL steps)" in out
    assert "1 of 2 · rloo seed 1 · held-out 20.0% → 90.0%" in out
    assert "2 of 2 · rloo seed 2 · failed: stopped: it did not go well (made/runs/rloo-seed2/log.txt)" in out
    assert "note: all are read at 256 completions" in out
    text = (here / "made" / "report.md").read_text()
    assert "**rloo, seed 2, failed and is in no number below: stopped: it did not go well**" in text
    # grpo at 256 is its end, 0.4; rloo stays at 0.9; only seed 1 has both
    assert cells(text, "rloo - grpo, accuracy")[1:] == ["+50.0", "-", "1", "one seed: no interval"]

    outcomes["rloo", 2] = [0.2] + [0.5] * 6
    code, out, _ = run(capsys, *line)
    assert code == 0
    assert "1 of 2 runs were finished before" in out
    # 50 and 10 points: mean 30, deviation 28.28, half width 12.706 * 28.28 / sqrt 2 = 254.1
    text = (here / "made" / "report.md").read_text()
    assert cells(text, "rloo - grpo, accuracy")[1:] == ["+30.0", "[-224.1, +284.1]", "2", "no difference seen"]


def test_own_options_stand_apart_from_those_of_the_runs():
    found = parse(["a", "--config", "o1", "b", "-c=o2", "--seeds", "1,2,7", "--jobs=2", "--model.critic=null"])
    assert (found.arguments, found.overlays, found.options) == (["a", "b"], ["o1", "o2"], ["--model.critic=null"])
    assert (found.seeds, found.jobs, found.target) == ([1, 2, 7], 2, 0.8)


def test_help_explains_every_option(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  --{name}=" in out for name in (*OWN, "config"))


def test_what_can_be_refused_needs_no_torch():
    code = (
        "import sys; from lit_group_rl.cli.main import main; main(['compare', 'grpo', 'sft_warmup']); "
        "main(['compare', '--help']); sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_two_recipes_are_run_and_the_second_time_nothing_is(here, capsys, request):
    line = ["grpo", "rloo", "--seeds=1", "--config=scale/smoke", "--jobs=2", "--trainer.accelerator=cpu", "--out=c"]
    code, out, _ = run(capsys, *line)
    assert code == 0
    assert "equal budget: 32 completions each" in out  # smoke: 2 steps of 4 x 4
    assert re.search(r"2 of 2 · \w+ seed 1 · held-out \d+\.\d% → \d+\.\d%", out)
    runs = sorted((here / "c" / "runs").glob("*/*/summary.json"))
    assert [p.parts[-3:-1] for p in runs] == [("grpo-seed1", "0001"), ("rloo-seed1", "0001")]
    assert {json.loads(p.read_text())["completions"] for p in runs} == {32}
    made = {p: p.stat().st_mtime_ns for p in runs}
    report = (here / "c" / "report.md").read_text()

    request.getfixturevalue("undrawn")
    code, out, _ = run(capsys, *line)
    assert code == 0
    assert "2 of 2 runs were finished before" in out
    assert {p: p.stat().st_mtime_ns for p in sorted((here / "c" / "runs").glob("*/*/summary.json"))} == made
    assert (here / "c" / "report.md").read_text() == report

    # the folders that were left are read like any others
    folders = [str(p.parent) for p in runs]
    assert run(capsys, *folders, "--out=again")[0] == 0
    again = (here / "again" / "report.md").read_text()
    assert [cells(again, name) for name in ("grpo", "rloo")] == [cells(report, name) for name in ("grpo", "rloo")]
