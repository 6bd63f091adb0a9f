"""The table of metrics: consistent in itself, and the source of what is generated from it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lit_group_rl import tags

ROOT = Path(__file__).parents[1]


def test_every_name_in_the_table_follows_the_naming_rules():
    for tag in tags.TABLE:
        example = tag.name.replace("_K", "_4").lower()
        assert tags.check_name(example) == [], tag.name


def test_no_name_is_defined_twice_and_groups_stay_together():
    names = [t.name for t in tags.TABLE]
    assert len(names) == len(set(names))
    groups = [n.partition("/")[0] for n in names]
    changes = [g for g, before in zip(groups, ["", *groups], strict=False) if g != before]
    assert len(changes) == len(set(changes))


def test_a_name_ends_in_frac_exactly_when_its_unit_is_a_share():
    for tag in tags.TABLE:
        quantity = tag.name.rpartition("/")[2]
        assert (tag.unit == "share") == (quantity.endswith("_frac") or quantity in tags.SHARES_BY_OTHER_NAMES), tag.name


def test_every_definition_is_one_sentence():
    for tag in tags.TABLE:
        assert not tag.definition[0].islower(), tag.name
        assert tag.definition.endswith("."), tag.name
        assert ". " not in tag.definition, tag.name
        assert "|" not in tag.definition, tag.name


@pytest.mark.parametrize(
    ("logged", "name"),
    [
        ("reward/mean", "reward/mean"),
        ("reward_part/exact", "reward_part/NAME"),
        ("schedule/aux_losses.kl.coef", "schedule/NAME"),
        ("time/step", "time/step"),
        ("time/annotate", "time/STAGE"),
        ("loss/kl", "loss/kl"),
        ("loss/kl_to_teacher", "loss/NAME"),
        ("eval/heldout/accuracy", "eval/SET/accuracy"),
        ("eval/heldout/pass_at_16", "eval/SET/pass_at_K"),
    ],
)
def test_a_logged_tag_finds_its_definition(logged, name):
    assert tags.definition(logged).name == name


@pytest.mark.parametrize(
    "logged", ["reward/means", "reward", "time/a/b", "eval/accuracy", "eval/heldout/pass_at_k", "reward_part/", "x/y"]
)
def test_an_undefined_tag_finds_none(logged):
    assert tags.definition(logged) is None


@pytest.mark.parametrize(
    ("tag", "says"),
    [
        ("Reward/mean", "lower case"),
        ("reward", "one slash"),
        ("reward/part/exact", "one slash"),
        ("eval/accuracy", "only eval/SET/quantity has two"),
        ("group/dead_share", "_frac"),
        ("policy/clip_rate", "_frac"),
        ("optim/skipped_count", "_total"),
        ("time/step_s", "seconds"),
    ],
)
def test_each_naming_rule_refuses(tag, says):
    assert any(says in sentence for sentence in tags.check_name(tag))


def test_the_largest_k_is_taken_by_number_not_by_letter():
    logged = {"eval/heldout/pass_at_2", "eval/heldout/pass_at_16", "eval/heldout/pass_at_8", "eval/heldout/mean_at_16"}
    assert tags.largest_k("eval/heldout/pass_at_K", logged) == "eval/heldout/pass_at_16"
    assert tags.largest_k("eval/heldout/maj_at_K", logged) is None
    assert tags.largest_k("reward/mean", {"reward/mean"}) == "reward/mean"


def test_the_first_page_shows_defined_tags_once_each():
    shown = [tag for charts in tags.FIRST_PAGE.values() for tag in charts.values()]
    assert len(shown) == len(set(shown))
    defined = {t.name.replace("/SET/", "/heldout/") for t in tags.TABLE}
    assert set(shown) <= defined


def test_the_page_of_the_docs_is_up_to_date_and_needs_no_torch():
    code = "import runpy, sys\n"
    code += "runpy.run_module('lit_group_rl.tags', run_name='__main__')\nassert 'torch' not in sys.modules"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert made == text, "run: python -m lit_group_rl.tags > docs/metrics.md"
