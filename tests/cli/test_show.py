"""``ls``, ``cat``, ``diff`` and the first screen."""

import pytest

from lit_group_rl.cli import catalog
from lit_group_rl.cli.main import COMMANDS, main


def run(capsys, *argv):
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_the_first_screen_says_what_to_try(capsys, argv):
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "try this first    lit-group-rl fit grpo" in out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert len(out.splitlines()) <= 20


def test_an_unknown_command_is_told_the_nearest(capsys):
    code, out, err = run(capsys, "fti", "grpo")
    assert (code, out) == (2, "")
    assert "'fti' is not known. Did you mean 'fit'?" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: lit-group-rl {command}")


def test_fit_help_lists_every_option_of_module_and_data(capsys):
    _, out, _ = run(capsys, "fit", "--help")
    for root, owner in catalog.ROOTS.items():
        for name in set(catalog.entry(owner).options) - {"steps", "seed"}:
            assert f"--{root}.{name} " in out


def test_ls_shows_all_recipes_and_every_component_of_a_slot(capsys):
    _, everything, _ = run(capsys, "ls")
    _, recipes, _ = run(capsys, "ls", "recipes")
    assert all(f"  {name} " in everything and f"  {name} " in recipes for name in catalog.files("recipes"))
    _, clips, _ = run(capsys, "ls", "clip_policy")
    assert (
        "FixedClip  The ratio may move within [1 - low, 1 + high]." in " ".join(clips.split()) or "FixedClip" in clips
    )
    assert all(f"  {name} " in clips for name in catalog.names("clip_policy"))


@pytest.mark.parametrize(
    "argv", [["ls", "FixedClip"], ["cat", "FixedClip"], ["fit", "--model.clip_policy.help", "FixedClip"]]
)
def test_a_class_is_shown_with_options_and_defaults(capsys, argv):
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "low = 0.2" in out
    assert "epsilon_low: how far the ratio may fall" in out
    assert "cap = null" in out


def test_ls_of_something_else_names_what_there_is(capsys):
    code, _, err = run(capsys, "ls", "advantages")
    assert code == 2
    assert "Did you mean 'advantage'?" in err


def test_cat_prints_the_file(capsys):
    code, out, _ = run(capsys, "cat", "grpo")
    assert code == 0
    assert out == catalog.files("recipes")["grpo"].read_text()


RECIPE = """\
steps: 320
model:
  sampler: {class_path: GroupSampler, init_args: {group_size: 8}}
  filter: null
  rewards: {exact: ExactMatch}
  advantage: GroupRelative
  clip_policy: {class_path: FixedClip, init_args: {low: 0.2, high: 0.2}}
  aux_losses:
    kl: {class_path: KL, init_args: {coef: 0.04}}
  aggregator: SequenceMean
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A recipe and a variant of it, as files a.yaml and b.yaml."""
    monkeypatch.chdir(tmp_path)

    def make(change):
        text = RECIPE
        for old, new in change.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "a.yaml").write_text(RECIPE)
        (tmp_path / "b.yaml").write_text(text)

    return make


def test_defaults_and_paths_written_out_are_no_difference(capsys, recipes):
    recipes(
        {
            "advantage: GroupRelative": "advantage: {class_path: lit_group_rl.advantages.GroupRelative, "
            "init_args: {divide_by: group_std, ddof: 1, eps: 1e-6}}",
            "FixedClip, init_args: {low: 0.2, high: 0.2}": "FixedClip",
            "filter: null": "critic: null",
        }
    )
    code, out, _ = run(capsys, "diff", "a.yaml", "b.yaml")
    assert code == 0
    assert "no difference" in out


def test_diff_shows_options_classes_and_entries(capsys, recipes):
    recipes(
        {
            "high: 0.2}": "high: 0.28}",
            "aggregator: SequenceMean": "aggregator: TokenMean",
            "filter: null": "filter: MixedOutcome",
            "steps: 320": "steps: 7",
            "coef: 0.04": "coef: 0.01, estimator: k2",
            "{exact: ExactMatch}": "{exact: ExactMatch, form: {class_path: Length, init_args: {longest: 5}}}",
        }
    )
    _, out, _ = run(capsys, "diff", "a.yaml", "b.yaml")
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert rows == {
        "steps 320 -> 7",
        "model.filter none -> MixedOutcome",
        "model.clip_policy.high 0.2 -> 0.28",
        "model.aux_losses.kl.coef 0.04 -> 0.01",
        "model.aux_losses.kl.estimator k3 -> k2",
        "model.aggregator SequenceMean -> TokenMean",
        "model.rewards.form none -> Length(longest=5)",
    }


def test_diff_takes_two(capsys):
    assert run(capsys, "diff", "grpo")[0] == 2
