"""Imports point one way, and the loop knows no algorithm."""

import ast
import re
from pathlib import Path

import pytest

from lit_group_rl.cli import catalog

PACKAGE = Path(__file__).parents[1] / "lit_group_rl"
SLOTS = {
    "samplers", "filters", "rewards", "advantages", "ratios", "clip_policies", "surrogates", "loss_weights",
    "aux_losses", "aggregators", "critics", "evaluators", "update_schedules",
}  # fmt: skip
LAYERS = [
    {"functional", "metric_bag"},
    {"types", "tags", "pulse"},
    {
        "schedules",
        "environments",
        "engines",
        "batching",
        "cache",
        "packing",
        "drawn",
        "llama_step",
        "generation",
        "slow_generation",
        "scoring",
    },
    SLOTS,
    {"everything else"},
    {"cli"},
    {"__main__"},
]
"""A part imports from its own layer and from those before it; a new top-level file belongs to 'everything else'."""
BETWEEN_SLOTS = {
    ("aux_losses", "aggregators"): "a term may have a normaliser of its own",
    ("evaluators", "critics"): "both are models with a loss of their own",
}
HEAVY = {
    "critics/backbone.py": "builds a body like the policy's",
    "rewards/reward_model.py": "reads a sequence classifier",
    "rewards/group_embedding.py": "reads an encoder",
    "engines/continuous_batching.py": "is a part of it",
}
"""Components that use transformers, each inside a function."""
LOOP = ("module.py", "engine.py")
OF_THE_LOOP = {"HFPolicy", "HeldOut"}
"""Classes that a recipe may name and that the module names too: the type of its policy, the default evaluation."""
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path, only_top=False):
    """(module, imported names) of a file, those for type checkers left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if only_top else ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [alias.name for alias in node.names]
            if node.module == "lit_group_rl":
                yield from ((f"lit_group_rl.{name}", []) for name in names if name != "__version__")
            else:
                yield node.module, names


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def layer(name):
    return next((i for i, names in enumerate(LAYERS) if name in names), len(LAYERS) - 3)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path):
    own = part(path)
    for module, _ in imports(path):
        if not module.startswith("lit_group_rl."):
            continue
        other = module.split(".")[1]
        assert layer(other) <= layer(own), f"{own} imports {module}"
        if own in SLOTS and other in SLOTS - {own}:
            assert (own, other) in BETWEEN_SLOTS, f"{own} imports {module}"


def test_the_slots_are_all_packages_whose_base_is_a_slot():
    bases = {catalog.entry(base).module.split(".")[1] for slot, base in catalog.slots().items()}
    assert bases - {"policy", "evaluation", "data", "schedules", "environments", "engines"} == SLOTS


def test_declared_exceptions_are_still_needed():
    found = {
        (part(p), module.split(".")[1]) for p in FILES for module, _ in imports(p) if module[:13] == "lit_group_rl."
    }
    assert set(BETWEEN_SLOTS) <= found
    heavy = {
        p.relative_to(PACKAGE).as_posix() for p in FILES if any(m.startswith("transformers") for m, _ in imports(p))
    }
    assert set(HEAVY) <= heavy


@pytest.mark.parametrize("slot", sorted(SLOTS | {"functional", "schedules", "environments", "engines"}))
def test_components_import_neither_lightning_nor_transformers(slot):
    for path in PACKAGE.joinpath(slot).rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        top = {module.split(".")[0] for module, _ in imports(path, only_top=True)}
        everywhere = {module.split(".")[0] for module, _ in imports(path)}
        assert not top & {"lightning", "transformers", "peft", "datasets"}, name
        assert "lightning" not in everywhere, name
        assert "transformers" not in everywhere or name in HEAVY, name


def components():
    return {name for slot in catalog.slots() for name in catalog.names(slot)}


@pytest.mark.parametrize("file", LOOP)
def test_the_loop_names_no_component(file):
    named = {name for _, names in imports(PACKAGE / file) for name in names}
    assert named & components() <= OF_THE_LOOP
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert used & components() <= OF_THE_LOOP


@pytest.mark.parametrize("file", LOOP)
def test_the_loop_contains_no_algorithms_name(file):
    text = (PACKAGE / file).read_text(encoding="utf-8").lower()
    names = {name for recipe in catalog.files("recipes") for name in (recipe, recipe.replace("_", "-"))}
    assert {name for name in names | {"reinforce"} if re.search(rf"\b{re.escape(name)}\b", text)} == set()


@pytest.mark.parametrize("file", LOOP)
def test_the_loop_does_not_branch_on_a_class(file):
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("__name__", "__class__", "__qualname__"), f"line {node.lineno}"
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                compared = {c.value for c in ast.walk(side) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                assert not compared & (components() | set(catalog.files("recipes"))), f"line {node.lineno}"
