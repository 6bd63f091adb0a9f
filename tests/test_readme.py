"""The commands of the README pages parse, the cheap ones run, and so do the files that the pages show."""

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from lit_group_rl.cli import compare, run, run_folder
from lit_group_rl.cli.compare_arms import arms_of, check_alike
from lit_group_rl.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "recipes/README.md")
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in (*PAGES, "CONTRIBUTING.md")}
FILES = dict(re.findall(r"`([\w.]+\.(?:py|yaml|jsonl))`:\n\n```\w+\n(.*?)```", TEXT["README.md"], re.DOTALL))
"""File that the README shows -> its content."""


def commands(page):
    """Every line of the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT[page], re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


ALL = sorted({line for page in TEXT for line in commands(page)})
OURS = [line for line in ALL if line.startswith("lit-group-rl ") and "median_baseline" not in line]
"""The others are those of the four steps, run by their own test."""
QUICK = [line for line in OURS if "scale/smoke" in line]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        for module in [m for m in sys.modules if m.split(".")[0] == Path(name).stem]:
            monkeypatch.delitem(sys.modules, module)  # of another test's folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(run_folder.ENVIRONMENT, "")
    return tmp_path


def test_the_pages_show_what_is_tested_here():
    assert set(FILES) == {"centred.yaml", "my_parts.py", "my_rewards.py", "brief.yaml", "mine.jsonl"}
    assert {"make demo", "make test", "lit-group-rl diff grpo dapo"} <= set(ALL)
    assert len(QUICK) >= 3
    assert TEXT["README.md"].count("```") % 2 == 0


@pytest.mark.parametrize("line", [line for line in ALL if not line.startswith("lit-group-rl ")])
def test_other_commands_name_what_exists(line):
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.search(r"\[(.*)\]", line)[1].split(",")) <= set(extras)
    else:
        assert words[:2] == ["python", "-m"]
        assert importlib.util.find_spec(words[2])


@pytest.mark.parametrize("line", OURS)
def test_our_commands_parse(folder, capsys, line):
    command, *rest = shlex.split(line)[1:]
    assert command in COMMANDS
    if command in ("ls", "cat", "diff"):
        assert main([command, *rest]) == 0
        assert capsys.readouterr().out.strip()
    elif command == "export":
        assert len(rest) == 2
    elif command == "compare":
        request = compare.parse(rest)
        arms, _ = arms_of(request.arguments, request.overlays, request.options)
        assert check_alike(arms) == []
    else:
        from lit_group_rl.cli.lightning_cli import parse

        assert parse(run.prepare(rest)).config.model


@pytest.mark.parametrize("line", QUICK)
def test_quick_commands_run(folder, capsys, line):
    command, *rest = shlex.split(line)[1:]
    assert main([command, *rest]) == 0
    out = capsys.readouterr().out
    assert "ready." in out if command == "check" else "held-out" in out


def test_commands_within_the_text_are_known():
    for page, text in TEXT.items():
        for line in re.findall(r"`lit-group-rl (.*?)`", text):
            word = line.split()[0]
            assert word in COMMANDS or word == "--version", f"{page}: {line}"


def test_options_within_the_text_exist():
    # `--model.policy.chat` and `model.policy.chat`: the first two parts are in the catalog, the third in some class
    from lit_group_rl.cli import catalog

    classes = {name for slot in catalog.slots() for name in catalog.names(slot)}
    inner = {option for name in classes for option in catalog.entry(name).options}
    for page, text in TEXT.items():
        for root, slot, option in re.findall(r"`(?:--)?(model|data)\.(\w+)(?:\.(\w+))?", text):
            assert slot in catalog.entry(catalog.ROOTS[root]).options, f"{page}: {root}.{slot}"
            assert not option or option in inner | {"kl"}, f"{page}: {root}.{slot}.{option}"


def test_the_example_rows_are_data(folder):
    from lit_group_rl.data import Table

    train, heldout = Table(path="mine.jsonl", prompt="question", answer="answer").load(1)
    assert sorted(p.answer for p in [*train, *heldout]) == ["Lima", "Paris", "Tokyo"]


def test_the_output_shown_is_what_a_run_prints():
    shown = re.search(r"<!-- demo output -->\n```text\n(.*?)```", TEXT["README.md"], re.DOTALL)[1]
    start, end = map(float, re.search(r"held-out (\S+)% → (\S+)% \(greedy, 256 prompts\)", shown).groups())
    # the bar of the main job: from at most 40 % to at least 85 %
    assert start <= 40
    assert end >= 85
    assert f"held-out {start}%" in shown
