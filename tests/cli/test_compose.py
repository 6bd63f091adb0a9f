"""Files and options become one configuration in which nothing is carried over silently."""

import pytest

from lit_group_rl.cli.compose import compose, locate
from lit_group_rl.cli.refusal import Refusal

RECIPE = """\
model:
  clip_policy:
    class_path: FixedClip
    init_args: {low: 0.2, high: 0.3}
  ratio: TokenRatio
  rewards:
    exact: ExactMatch
    length: {class_path: Length, init_args: {weight: 0.1}}
  tags: [1, 2]
steps: 9
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**named):
        for name, text in named.items():
            (tmp_path / f"{name}.yaml").write_text(text)

    write(base=RECIPE)
    return write


def test_the_same_class_merges_its_options(files):
    """Known fault B64."""
    files(over="model:\n  clip_policy:\n    class_path: FixedClip\n    init_args: {high: 0.28}\n")
    config = compose(["base.yaml", "over.yaml"])
    assert config.values["model"]["clip_policy"] == {"class_path": "FixedClip", "init_args": {"low": 0.2, "high": 0.28}}
    assert config.notices == []
    assert str(config.place("model.clip_policy.high")) == "over.yaml line 4"
    assert str(config.place("model.clip_policy.low")) == "base.yaml line 4"


@pytest.mark.parametrize(
    "spelling",
    ["lit_group_rl.clip_policies.FixedClip", "lit_group_rl.clip_policies.fixed.FixedClip", "FixedClip"],
)
def test_a_class_is_the_same_under_each_of_its_paths(files, spelling):
    files(over=f"model: {{clip_policy: {{class_path: {spelling}, init_args: {{high: 1.0}}}}}}\n")
    merged = compose(["base.yaml", "over.yaml"])
    assert merged.at("model.clip_policy.low") == 0.2
    assert merged.notices == []


def test_a_users_class_of_the_same_name_is_another_class(files):
    files(over="model: {clip_policy: {class_path: mine.FixedClip}}\n")
    assert "low" not in str(compose(["base.yaml", "over.yaml"]).at("model.clip_policy"))


@pytest.mark.parametrize("new", ["NoClip", "{class_path: NoClip}", "{class_path: NoClip, init_args: {}}"])
def test_another_class_drops_the_old_options_and_says_so(files, new):
    """Known fault B66."""
    files(over=f"steps: 3\nmodel:\n  clip_policy: {new}\n")
    config = compose(["base.yaml", "over.yaml"])
    value = config.values["model"]["clip_policy"]
    assert (value if isinstance(value, str) else value["class_path"]) == "NoClip"
    assert not isinstance(value, dict) or not value.get("init_args")
    assert config.notices == ["model.clip_policy: FixedClip -> NoClip drops low=0.2, high=0.3 (over.yaml line 3)"]


def test_another_class_takes_only_its_own_options(files):
    files(over="model: {clip_policy: {class_path: RatioRange, init_args: {high: 9}}}\n")
    config = compose(["base.yaml", "over.yaml"])
    assert config.at("model.clip_policy") == {"class_path": "RatioRange", "init_args": {"high": 9}}


def test_options_may_be_given_without_the_class(files):
    files(a="model: {clip_policy: {init_args: {high: 0.5}}}\n", b="model: {clip_policy: {low: 0.1}}\n")
    assert compose(["base.yaml", "a.yaml", "b.yaml"]).at("model.clip_policy") == {
        "class_path": "FixedClip",
        "init_args": {"low": 0.1, "high": 0.5},
    }
    files(c="model: {ratio: {init_args: {level: 1}}}\n")
    assert compose(["base.yaml", "c.yaml"]).at("model.ratio") == {"class_path": "TokenRatio", "init_args": {"level": 1}}


def test_dicts_merge_lists_are_replaced_null_empties(files):
    """Known fault B64, lists."""
    files(over="model: {rewards: {extra: Pattern, length: {weight: 0.5}}, tags: [3], clip_policy: null}\n")
    model = compose(["base.yaml", "over.yaml"]).values["model"]
    assert list(model["rewards"]) == ["exact", "length", "extra"]
    assert model["rewards"]["length"]["init_args"] == {"weight": 0.5}
    assert model["tags"] == [3]
    assert model["clip_policy"] is None


def test_null_takes_one_entry_out_of_a_slot_of_several(files):
    files(over="model: {rewards: {exact: null}}\n")
    assert list(compose(["base.yaml", "over.yaml"]).values["model"]["rewards"]) == ["length"]


@pytest.mark.parametrize(
    "option",
    [
        ["--model.clip_policy=NoClip"],
        ["--model.clip_policy", "NoClip"],
        ["--model.clip_policy.class_path=NoClip"],
        ["--model.clip_policy={class_path: NoClip}"],
    ],
)
def test_a_class_change_on_the_command_line_drops_the_old_options_too(files, option):
    config = compose(["base.yaml", *option])
    assert config.rest == []
    assert config.at("model.clip_policy") in ("NoClip", {"class_path": "NoClip"})
    assert config.notices == ["model.clip_policy: FixedClip -> NoClip drops low=0.2, high=0.3 (command line)"]


def test_other_options_are_passed_on_in_order(files):
    words = ["base.yaml", "--steps", "5", "--model.clip_policy.low=-1", "--x", "-2", "--print_config", "--c=1"]
    assert compose(words[:-1]).rest == ["--steps=5", "--model.clip_policy.low=-1", "--x=-2", "--print_config"]


def test_null_on_the_command_line_empties_a_component(files):
    config = compose(["base.yaml", "--model.clip_policy=null", "--model.rewards.length=null"])
    assert config.values["model"]["clip_policy"] is None
    assert list(config.values["model"]["rewards"]) == ["exact"]


def test_config_options_and_names_are_files_in_the_order_given(files):
    files(a="steps: 1\n", b="steps: 2\n")
    for words in (
        ["base.yaml", "a.yaml", "b.yaml"],
        ["--config=base.yaml", "--config", "a.yaml", "-c", "b.yaml"],
        ["base.yaml", "--config", "a.yaml", "b.yaml"],
    ):
        config = compose(words)
        assert config.values["steps"] == 2
        assert config.name == "base"


def test_recipes_and_overlays_are_found_by_name():
    assert locate("grpo").samefile(locate("recipes/grpo.yaml"))
    assert locate("grpo").samefile(locate("recipes/grpo"))
    assert locate("scale/smoke").parent.name == "scale"
    with pytest.raises(Refusal, match="Did you mean 'grpo'"):
        locate("gprpo")
    with pytest.raises(Refusal, match="Did you mean 'scale/smoke'"):
        locate("configs/scale/smokes.yaml")
