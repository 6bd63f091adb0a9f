"""Overlays fit every recipe and name no algorithm; options that classes of a slot share."""

import importlib.util
import itertools

import pytest
import yaml

from lit_group_rl.cli import catalog, run
from lit_group_rl.cli.compose import class_of, compose, is_component, options_of
from lit_group_rl.cli.precheck import check_names
from lit_group_rl.cli.refusal import Refusal

RECIPES, OVERLAYS = catalog.files("recipes"), catalog.files("configs")
WHAT_AN_OVERLAY_MAY_SET = {
    "steps": None, "seed": None, "data": None, "trainer": None,
    "model": {"policy", "sampler", "rewards", "heldout", "learning_rate", "micro_batch_tokens"},
}  # fmt: skip
"""Which model, which data, how big; of the model's options those that are not the algorithm."""
CORRECTED = "engine/"
"""Overlays of this folder bring the weight that makes up for what they draw with."""
SINGLE_CHANGES = "dapo_parts/"
"""Overlays of this folder are the parts of one algorithm, to be tried one at a time."""
SAMPLE = ("grpo", "dapo_dual_agent")
"""Recipes that the overlays are parsed with in turn; with scale/smoke every recipe is trained elsewhere."""
REFUSED = {
    ("sft_warmup", "policy/smollm2_135m"): "temperature",  # a reference answer is not drawn
    ("sft_warmup", "policy/lora"): "lora",  # an adapter on random weights that stay random
    ("sft_warmup", "environment/calculator"): "temperature",
    ("sft_warmup", "trainer/activation_checkpointing"): "gradient_checkpointing",  # small enough without
    ("sft_warmup", "engine/continuous_batching"): "engine",
    ("sft_warmup", "engine/vllm"): "engine",
    ("sft_warmup", "engine/vllm_server"): "engine",
}
"""Pairs that do not fit, and the option that the refusal names."""
SIZE_OF_A_MODEL = "limits of models of different size"
PAPER = "each the value of its own paper"
MEANING = "the same word for different quantities"
SHARED = {
    ("sampler", "group_size"): "a reference answer is alone",
    ("rewards", "weight"): "form and agreement are side terms, the answer is the aim",
    ("rewards", "max_tokens"): SIZE_OF_A_MODEL,
    ("rewards", "batch_size"): SIZE_OF_A_MODEL,
    ("rewards", "workers"): "a function called for the whole batch has use for one, programs for more",
    ("rewards", "device"): "an encoder is small, a reward model goes where the policy is",
    ("advantage", "ddof"): PAPER,
    ("advantage", "eps"): PAPER,
    ("advantage", "divide_by_std"): PAPER,
    ("clip_policy", "cap"): MEANING,
    ("clip_policy", "high"): PAPER,
    ("clip_policy", "low"): PAPER,
    ("clip_policy", "decay"): "quantiles are taken of the step, moments need a memory",
    ("shapers", "coef"): MEANING,
    ("loss_weights", "share"): PAPER,
    ("aux_losses", "coef"): PAPER,
    ("source", "level"): "each task has levels of its own",
    ("source", "train_size"): "ready tasks are costlier to make",
    ("source", "chat"): "made for instruction-tuned models, or as the file is",
    ("source", "config"): MEANING,
    ("schedule", "start"): MEANING,
    ("schedule", "high"): MEANING,
    ("schedule", "metric"): "what each controls",
}
"""Option names that classes of one slot share with unequal defaults, and why: a reader takes the default of one for
that of the other, so a new pair has to be meant.  Nothing is carried over when the class changes."""


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_fits_every_recipe(overlay):
    for recipe in RECIPES:
        if (recipe, overlay) not in REFUSED:
            check_names(compose([recipe, overlay]))


@pytest.mark.parametrize("pair", REFUSED)
def test_the_pairs_that_do_not_fit_are_refused_by_name(pair):
    with pytest.raises(Refusal, match=REFUSED[pair]):
        check_names(compose(pair))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_of_different_kinds_go_together(overlay):
    for other in OVERLAYS:
        if other > overlay and other.split("/")[0] != overlay.split("/")[0]:
            check_names(compose(["grpo", overlay, other]))


def one_of_each_kind():
    """Sets of overlays that together hold all of them, one or none of a kind in each: the parser takes a second."""
    kinds = itertools.groupby(sorted(set(OVERLAYS) - {"scale/smoke"}), key=lambda name: name.split("/")[0])
    for position, chosen in enumerate(itertools.zip_longest(*(list(names) for _, names in kinds))):
        yield SAMPLE[position % len(SAMPLE)], [name for name in chosen if name]


@pytest.mark.parametrize(("recipe", "overlays"), list(one_of_each_kind()))
def test_the_parser_takes_every_overlay(recipe, overlays, monkeypatch):
    from lit_group_rl.cli.lightning_cli import parse

    if "data/reasoning_gym" in overlays and importlib.util.find_spec("reasoning_gym") is None:
        overlays.remove("data/reasoning_gym")
    config = compose([recipe, *overlays])
    parsed = parse(run.prepare([recipe, *overlays])).config
    # a value of the overlay arrives: the parser has read the file, not only accepted it
    policy = config.at("model.policy")
    assert parsed.model.policy.class_path.rsplit(".", 1)[-1] == class_of(policy).rsplit(".", 1)[-1]
    assert parsed.data.source.class_path.rsplit(".", 1)[-1] == class_of(config.at("data.source")).rsplit(".", 1)[-1]
    for name, value in options_of(config.at("data.source")).items():
        assert parsed.data.source.init_args[name] == value


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if not name.startswith(SINGLE_CHANGES)])
def test_an_overlay_names_no_algorithm(overlay):
    values = yaml.safe_load(OVERLAYS[overlay].read_text(encoding="utf-8"))
    assert set(values) <= set(WHAT_AN_OVERLAY_MAY_SET)
    model = values.get("model") or {}
    assert set(model) <= WHAT_AN_OVERLAY_MAY_SET["model"] | (
        {"loss_weights"} if overlay.startswith(CORRECTED) else set()
    )
    assert "sampler" not in model or not is_component(model["sampler"])


def test_the_parts_of_dapo_are_one_slot_each_and_together_make_dapo():
    parts = [name for name in OVERLAYS if name.startswith(SINGLE_CHANGES)]
    for name in parts:
        assert len(yaml.safe_load(OVERLAYS[name].read_text(encoding="utf-8"))["model"]) == 1
    whole, paper = compose(["grpo", *parts]).values["model"], compose(["dapo"]).values["model"]
    assert {slot for slot in paper if whole[slot] != paper[slot]} == {"aux_losses"}, "DAPO has no KL either"


def test_an_overlay_that_brings_a_class_gives_every_option_of_it():
    # so that what it means does not depend on the recipe under it
    for name, path in OVERLAYS.items():
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        parts = [*((values.get("model") or {}).get("rewards") or {}).values(), (values.get("data") or {}).get("source")]
        for part in parts:
            if is_component(part):
                entry = catalog.find(class_of(part))
                assert set(options_of(part)) >= set(entry.options) - {"solved_at", "range"}, f"{name}: {entry.name}"


def test_shared_option_names_have_equal_defaults_or_a_reason():
    found = set()
    for slot in catalog.slots():
        defaults = {}
        for name in catalog.names(slot):
            for option in catalog.entry(name).options.values():
                if option.default is not catalog.REQUIRED:
                    defaults.setdefault(option.name, set()).add(repr(option.default))
        found |= {(slot, option) for option, values in defaults.items() if len(values) > 1}
    assert found - set(SHARED) == set()
    assert set(SHARED) - found == set(), "no longer needed"


def test_all_recipes_name_the_slots_in_the_same_order():
    order = list(yaml.safe_load(RECIPES["grpo"].read_text(encoding="utf-8"))["model"])
    for name, path in RECIPES.items():
        keys = list(yaml.safe_load(path.read_text(encoding="utf-8"))["model"])
        assert [k for k in order if k in keys] == [k for k in keys if k in order], name
        assert set(order) - set(keys) <= {"optimizer"}, name
