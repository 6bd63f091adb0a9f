"""What ``ls`` and the refusals know of the package is what Python sees when it is imported."""

import dataclasses
import importlib
import inspect
from argparse import ArgumentError

import pytest
from jsonargparse import ArgumentParser

from lit_group_rl.cli import catalog
from lit_group_rl.cli.lightning_cli import import_components
from lit_group_rl.module import LitGroupRL
from lit_group_rl.types import Component


def subclasses(base):
    return {base, *(c for child in base.__subclasses__() for c in subclasses(child))}


@pytest.fixture(scope="module")
def imported():
    import_components()
    return {c.__name__: c for c in subclasses(Component) if c.__module__.startswith("lit_group_rl.")}


def test_every_slot_of_the_module_is_known():
    parameters = inspect.signature(LitGroupRL.__init__).parameters
    assert {"policy", "sampler", "rewards", "aux_losses", "critic", "heldout"} <= set(catalog.slots())
    inside_others = {"source", "schedule", "environment", "engine"}
    assert set(catalog.slots()) - inside_others <= set(parameters)
    assert set(catalog.dict_slots()) == {"rewards", "shapers", "loss_weights", "aux_losses"}


@pytest.mark.parametrize("slot", catalog.slots())
def test_the_components_of_a_slot_are_its_concrete_subclasses(slot, imported):
    base = imported[catalog.slots()[slot]]
    concrete = {
        c.__name__
        for c in subclasses(base)
        if not inspect.isabstract(c) and c.__module__.startswith("lit_group_rl.") and not c.__module__.endswith(".base")
    }
    assert set(catalog.names(slot)) == {n for n in concrete if not n.startswith("_")}


def test_options_are_those_of_the_constructor(imported):
    for slot in catalog.slots():
        for name in catalog.names(slot):
            entry, found = catalog.entry(name), imported[name]
            assert getattr(importlib.import_module(entry.module), name) is found
            expected = inspect.signature(found.__init__).parameters
            given = [p for p in expected.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
            assert set(entry.options) == {p.name for p in given if p.kind is not p.VAR_POSITIONAL}, name


def test_defaults_are_read_right(imported):
    for slot in catalog.slots():
        for name in catalog.names(slot):
            if not dataclasses.is_dataclass(imported[name]):
                continue
            for field in dataclasses.fields(imported[name]):
                option = catalog.entry(name).options.get(field.name)
                if option and isinstance(field.default, int | float | str | bool | None):
                    literal = not isinstance(option.default, str) or isinstance(field.default, str)
                    assert not literal or option.default == field.default, f"{name}.{field.name}"


def test_every_component_and_option_is_documented():
    for slot in catalog.slots():
        for name in catalog.names(slot):
            entry = catalog.entry(name)
            assert entry.doc, name
            for option in entry.options.values():
                assert option.doc, f"{name}.{option.name}"


def test_the_parser_checks_the_type_of_every_numeric_option(imported):
    # jsonargparse takes any value for an option whose type it cannot resolve
    for slot in catalog.slots():
        for name in catalog.names(slot):
            required = [o for o in catalog.entry(name).options.values() if o.default is catalog.REQUIRED]
            if any(o.annotation not in ("int", "float", "str", "Number") for o in required):
                continue  # has no value that fits every such option
            parser = ArgumentParser(exit_on_error=False)
            parser.add_class_arguments(imported[name], "part")
            for option in catalog.entry(name).options.values():
                if isinstance(option.default, int | float):
                    given = [f"--part.{o.name}=1" for o in required if o is not option]
                    with pytest.raises(ArgumentError, match=option.name):
                        parser.parse_args([*given, f"--part.{option.name}=zzz"])


def test_recipes_and_overlays_say_what_they_are():
    for kind in ("recipes", "configs"):
        assert catalog.files(kind)
        for name, path in catalog.files(kind).items():
            assert len(catalog.header(path)) > 10, name
