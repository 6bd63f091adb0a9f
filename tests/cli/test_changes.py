"""What a resumed run may change: pace and place freely, the objective only when asked to."""

import pytest
import yaml

from lit_group_rl.cli.changes import refuse_changes
from lit_group_rl.cli.refusal import Refusal


def config(**changes):
    policy = {"class_path": "HFPolicy", "init_args": {"path": "x", "decode_rows": 512, "lora": None}}
    values = {
        "steps": 10,
        "seed": 1,
        "model.policy": policy,
        "model.rewards": {"exact": {"class_path": "ExactMatch", "init_args": {"weight": 1.0}}},
        "model.critic": None,
        "model.heldout": {"class_path": "HeldOut", "init_args": {"every": 20}},
        "model.learning_rate": 0.001,
        "data.prompts_per_step": 32,
        "trainer.devices": 1,
    } | changes
    nested = {}
    for key, value in values.items():
        at = nested
        *outer, last = key.split(".")
        for part in outer:
            at = at.setdefault(part, {})
        at[last] = value
    return yaml.safe_dump(nested)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.yaml").write_text(config())
    return tmp_path


FREE = [
    {},
    {"steps": 20},
    {"trainer.devices": 8},
    {"model.heldout": None},
    {"model.policy": {"class_path": "HFPolicy", "init_args": {"path": "x", "decode_rows": 64, "lora": None}}},
    # an option that the old file does not know
    {"data.on_long_prompt": "error"},
]
OBJECTIVE = [
    ({"seed": 2}, "seed: 1 -> 2"),
    ({"data.prompts_per_step": 16}, "data.prompts_per_step: 32 -> 16"),
    ({"model.critic": {"class_path": "LightCritic"}}, "model.critic: None -> LightCritic"),
    (
        {"model.rewards": {"exact": {"class_path": "ExactMatch", "init_args": {"weight": 0.5}}}},
        "model.rewards.exact.weight: 1.0 -> 0.5",
    ),
    (
        {
            "model.rewards": {
                "exact": {"class_path": "ExactMatch", "init_args": {"weight": 1.0}},
                "form": {"class_path": "Format"},
            }
        },
        "model.rewards.form: None -> Format",
    ),
]


@pytest.mark.parametrize("changes", FREE)
def test_what_may_change_without_a_word(run, changes):
    assert refuse_changes(run, config(**changes), allowed=False) == []


def test_what_may_change_and_what_is_told(run):
    notes = refuse_changes(run, config(**{"model.learning_rate": 0.5}), allowed=False)
    assert notes == ["resume: model.learning_rate changed: 0.001 -> 0.5"]


@pytest.mark.parametrize(("changes", "said"), OBJECTIVE)
def test_another_objective_is_refused_unless_allowed(run, changes, said):
    with pytest.raises(Refusal) as error:
        refuse_changes(run, config(**changes), allowed=False)
    for word in (said, "config.yaml", "--allow_changes=true"):
        assert word in str(error.value)
    assert [n.partition("changed")[0] for n in refuse_changes(run, config(**changes), allowed=True)]


def test_the_configuration_last_given_counts(run):
    (run / "config.2.yaml").write_text(config(seed=2))
    assert refuse_changes(run, config(seed=2), allowed=False) == []
    with pytest.raises(Refusal, match=r"config\.2\.yaml"):
        refuse_changes(run, config(), allowed=False)


def test_a_run_without_its_configuration_is_not_judged(tmp_path):
    assert refuse_changes(tmp_path, config(), allowed=False) == []
