"""The commands of the guides name what exists, and their files and programs can be read."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from lit_group_rl.cli import compare
from lit_group_rl.cli.compare_arms import arms_of, check_alike
from lit_group_rl.cli.compose import compose
from lit_group_rl.cli.main import COMMANDS, main
from lit_group_rl.cli.precheck import check_names

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/*.md"))
BLOCK = re.compile(r"(?:`([\w./-]+)`(?:[^`\n]*):\n\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks(page):
    return [match.groups() for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def commands():
    for page in PAGES:
        for _, language, text in blocks(page):
            for line in text.splitlines() if language == "sh" else ():
                if line.startswith("lit-group-rl "):
                    yield page.name, line


COMMANDS_SHOWN = sorted(set(commands()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands_to_check():
    assert len(COMMANDS_SHOWN) > 20
    assert {"compare.md", "models-and-data.md", "walkthroughs.md"} <= {page for page, _ in COMMANDS_SHOWN}


@pytest.mark.parametrize(("page", "line"), COMMANDS_SHOWN)
def test_a_command_names_what_exists(folder, capsys, page, line):
    for name, _, text in blocks(ROOT / "docs" / page):
        if name and "/" not in name:
            (folder / name).write_text(text, encoding="utf-8")
    (folder / "clip_higher.yaml").write_text("model: {clip_policy: {init_args: {high: 0.28}}}\n", encoding="utf-8")
    command, *rest = shlex.split(line)[1:]
    assert command in COMMANDS
    if command in ("ls", "cat", "diff"):
        assert main([command, *rest]) == 0
        assert capsys.readouterr().out.strip()
    elif command in ("fit", "check"):
        names = [word for word in rest if not word.startswith("-")]
        if names:  # a run that is resumed names none
            check_names(compose(rest))
    elif command == "compare" and not any(word.startswith("runs/") or word.startswith("my_") for word in rest):
        request = compare.parse(rest)
        arms, _ = arms_of(request.arguments, request.overlays, request.options)
        assert check_alike(arms) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_programs_can_be_read(page):
    for _, language, text in blocks(page):
        if language == "python":
            compile(text, page.name, "exec")
        elif language == "yaml":
            assert yaml.safe_load(text) is not None
        elif language == "json":
            assert [json.loads(line) for line in text.splitlines() if line.strip()]
