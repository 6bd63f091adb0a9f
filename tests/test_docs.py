"""What the documentation generates is up to date; what it links to and names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lit_group_rl import tags
from lit_group_rl.cli import catalog, docs

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "recipes/README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
READING = "reading order"


def without_reading_order(text):
    if f"<!-- generated: {READING} -->" not in text:
        return text
    start, end = docs.section(text, READING)
    return text[:start] + text[end:]


@pytest.mark.parametrize("file", docs.generated())
def test_generated_parts_are_up_to_date(file):
    stands = (ROOT / file).read_text(encoding="utf-8")
    assert without_reading_order(stands) == without_reading_order(docs.generated()[file]), f"run: {docs.COMMAND}"


def test_line_counts_of_the_reading_order_are_about_right():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    start, end = docs.section(text, READING)
    rows = re.findall(r"^\| \[(\S+)\]\(\S+\) \| (\d+) \|", text[start:end], re.MULTILINE)
    assert [name for name, _ in rows] == list(docs.READING)
    for name, stated in rows:
        actual = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        assert abs(actual - int(stated)) <= max(20, 0.2 * actual), f"{name}; run: {docs.COMMAND}"


def test_the_generator_needs_no_torch(tmp_path):
    code = "from lit_group_rl.cli import docs; docs.generated(); import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_missing_section_is_named():
    with pytest.raises(ValueError, match="generated: recipes"):
        docs.section("# Title\n", "recipes")


def test_every_recipe_and_component_is_on_the_pages():
    recipes = set(catalog.files("recipes")) - {docs.WARM_UP}
    for file in ("README.md", "recipes/README.md"):
        listed = re.findall(
            r"^\| \[(\w+)\]\(\S*?\w+\.yaml\) \|", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        )
        assert sorted(listed) == sorted(recipes), file
    page = (ROOT / "docs/components.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert set(headings) == {name for slot in catalog.slots() for name in catalog.names(slot)}
    assert f"{len(recipes)} algorithms" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", docs.recipes(), ids=lambda r: r.name)
def test_the_head_of_a_recipe_gives_title_source_and_difference(recipe):
    assert 5 < len(recipe.title) < 120
    assert not recipe.title.endswith(".")
    assert not re.search(r"\d{4}|arXiv", recipe.title)
    assert recipe.differs or recipe.name == docs.BASELINE
    assert (recipe.family == "notes") != bool(re.search(r"arXiv:\d{4}\.\d{5}", recipe.intro))


def test_acronyms_of_the_notes_say_what_they_normally_mean():
    for recipe in docs.recipes():
        if recipe.family == "notes" and not recipe.name.startswith("grpo"):
            acronym = recipe.name.partition("_")[0]
            assert f"The acronym normally means recipe {acronym}" in recipe.intro
            assert "no publication of that description was found" in recipe.intro


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(#[^)]*)?\)", text)
    assert targets or page in ("docs/metrics.md", "docs/results.md")
    for target, _ in targets:
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_components_that_the_pages_name_exist():
    known = {name for slot in catalog.slots() for name in catalog.names(slot)} | {"MedianBaseline"}
    for page in ("README.md", "docs/algorithms.md"):
        for word in re.findall(r"`([A-Z][a-z]+(?:[A-Z]\w+)+)`", (ROOT / page).read_text(encoding="utf-8")):
            assert word in known, f"{page}: {word}"


def test_metrics_that_the_pages_name_are_defined():
    for page in ("README.md", "docs/algorithms.md", "docs/components.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        groups = "|".join({t.name.partition("/")[0] for t in tags.TABLE})
        for tag in re.findall(rf"`((?:{groups})/[a-z0-9_/]+)`", text):
            assert tags.definition(tag), f"{page}: {tag}"
