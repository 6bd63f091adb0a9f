"""The four steps of CONTRIBUTING, taken in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(name, language):
    """The code block behind the file's name."""
    return re.search(rf"`{re.escape(name)}`[^`]*?(?:`[^`]+`)?:\n\n```{language}\n(.*?)```", TEXT, re.DOTALL)[1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    for name in ("lit_group_rl", "recipes", "configs", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests/advantages").mkdir(parents=True)
    for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "tests/builders.py"):
        shutil.copy(ROOT / name, root / name)
    return root


def python(root, *words):
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_four_steps_lead_to_a_recipe_that_trains(copy):
    name = "lit_group_rl/advantages/median_baseline.py"
    (copy / name).write_text(block(name, "python"), encoding="utf-8")
    exports = copy / "lit_group_rl/advantages/__init__.py"
    line = "from lit_group_rl.advantages.median_baseline import MedianBaseline\n"
    exports.write_text(exports.read_text(encoding="utf-8") + line, encoding="utf-8")

    name = "tests/advantages/test_median_baseline.py"
    (copy / name).write_text(block(name, "python"), encoding="utf-8")
    assert "2 passed" in python(copy, "-m", "pytest", "-p", "no:cacheprovider", name)

    head, changed = re.search(
        r"from `recipes/grpo.yaml`:\n\n```yaml\n(.*?)```\n\n```yaml\n(.*?)```", TEXT, re.DOTALL
    ).groups()
    body = (copy / "recipes/grpo.yaml").read_text(encoding="utf-8")
    body = re.sub(r"\A(#.*\n)+", lambda _: head, body)
    body = re.sub(r"^  advantage: .*\n", lambda _: changed, body, flags=re.MULTILINE)
    (copy / "recipes/median_baseline.yaml").write_text(body, encoding="utf-8")
    assert "held-out" in python(copy, "-m", "lit_group_rl", "fit", "median_baseline", "scale/smoke")
    assert "MedianBaseline" in (copy / "runs/median_baseline/0001/config.yaml").read_text(encoding="utf-8")

    python(copy, "-m", "lit_group_rl.cli.docs")
    row = re.search(
        r"^\| \[median_baseline\].*$", (copy / "recipes/README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert "the baseline is the median" in row[0]
    assert "A[i] = s[i] - median(group of i)" in (copy / "docs/components.md").read_text(encoding="utf-8")
    assert "MedianBaseline" in python(copy, "-m", "lit_group_rl", "ls", "advantage")
