"""Names in a merged configuration against the catalog: what is misspelt or missing is said before torch is loaded.

Types and values are the parser's business; classes from outside the package are left to it too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import Composed, class_of, is_component, options_of
from lit_group_rl.cli.refusal import Refusal, closest, suggest

TOP = {
    "steps": "RL steps of the run",
    "seed": "of every random draw",
    "model": "the algorithm",
    "data": "where prompts come from",
    "trainer": "Lightning's Trainer",
    "resume": "null, 'auto' for the newest run, or a run folder",
    "allow_changes": "resume although parts of the recipe are not those of the run",
    "run_root": "folder of all runs",
    "run_name": "folder of this recipe's runs",
}
"""Top-level keys of a recipe."""

ELSEWHERE = {
    "ckpt_path": "Use --resume RUN (a run folder), or --resume auto for the newest.",
    "trainer.gradient_clip_val": "Set model.max_grad_norm: the module clips by itself.",
    "trainer.gradient_clip_algorithm": "Set model.max_grad_norm: the module clips by norm.",
    "trainer.accumulate_grad_batches": "Set model.micro_batch_tokens: the module accumulates by itself.",
    "trainer.max_steps": "Set steps: a run is counted in RL steps.",
    "trainer.min_steps": "Set steps: a run is counted in RL steps.",
    "trainer.max_epochs": "Set steps: a run is counted in RL steps.",
    "trainer.min_epochs": "Set steps: a run is counted in RL steps.",
    "trainer.max_time": "Set steps: a run is counted in RL steps.",
    "trainer.val_check_interval": "Set model.heldout.every: RL steps between held-out evaluations.",
    "trainer.check_val_every_n_epoch": "Set model.heldout.every: RL steps between held-out evaluations.",
    "trainer.num_sanity_val_steps": "Set model.heldout.every: the run starts with a held-out evaluation anyway.",
    "trainer.default_root_dir": "Set run_root and run_name: the run folder is made from them.",
    "model.steps": "Set the top-level steps.",
    "model.seed": "Set the top-level seed.",
    "data.seed": "Set the top-level seed.",
}
"""Lightning's own options that this module does not read, and what to set instead."""


def check_names(config: Composed, user_code: bool = True, complete: bool = True) -> None:
    """Refuse unknown keys, unknown and unfit components.

    ``user_code`` False refuses classes from outside the package, ``complete`` True options that are missing.
    """
    for key in config.values:
        if key not in TOP:
            _unknown(config, key, key, TOP)
    for option in config.options():
        _check_option(config, option)
    for path, fix in ELSEWHERE.items():
        if _present(config, path):
            raise Refusal(path, "has no effect here", fix, config.place(path))
    _refuse_fsdp(config)
    for root in catalog.ROOTS:
        _check_root(config, root, config.values.get(root) or {}, user_code)
    if complete:
        _check_complete(config)


def _present(config: Composed, path: str) -> bool:
    if path in config.options():
        return True
    try:
        return config.at(path) is not None
    except KeyError:
        return False


def _refuse_fsdp(config: Composed) -> None:
    options = dict(o.lstrip("-").split("=", 1) for o in config.rest if "=" in o)
    trainer = config.values.get("trainer") or {}
    given = options.get("trainer.strategy", trainer.get("strategy"))
    name = class_of(given) if is_component(given) else given
    if isinstance(name, str) and ((name.startswith("fsdp") and name != "fsdp2") or name.endswith("FSDPStrategy")):
        raise Refusal(
            "trainer.strategy",
            f"'{name}' (FSDP1) breaks under manual optimization",
            "Use --trainer.strategy=fsdp2.",
            config.place("trainer.strategy"),
        )


def _check_root(config: Composed, root: str, values: Any, user_code: bool) -> None:
    entry = catalog.entry(catalog.ROOTS[root])
    if entry is None:
        return
    if not isinstance(values, dict):
        raise Refusal(root, f"must hold options, got {values!r}", "See `lit-group-rl cat grpo`.", config.place(root))
    _check_keys(config, root, values, entry)
    for slot, value in values.items():
        path = f"{root}.{slot}"
        if slot in catalog.dict_slots() and not is_component(value):
            if value is not None and not isinstance(value, dict):
                fix = f"Write {slot}: {{a_name: SomeClass}}."
                raise Refusal(path, "holds components by name", fix, config.place(path))
            for name, part in (value or {}).items():
                _check_component(config, f"{path}.{name}", slot, part, user_code)
        elif slot in catalog.dict_slots():
            fix = f"Write {slot}: {{a_name: {class_of(value)}}}."
            raise Refusal(path, f"holds components by name, got the class {class_of(value)}", fix, config.place(path))
        elif slot in catalog.slots() and value is not None:
            _check_component(config, path, slot, value, user_code)
        elif not user_code and is_component(value):
            _refuse_foreign(config, path, value)


def _check_component(config: Composed, path: str, slot: str, value: Any, user_code: bool) -> None:
    if not is_component(value):
        if isinstance(value, str) and "." in value:
            return _refuse_foreign(config, path, value) if not user_code else None
        if isinstance(value, dict):
            raise Refusal(path, "names no class", "Put a recipe first: fit RECIPE OVERLAY...", config.place(path))
        raise Refusal(
            path, f"{value!r} is not a component", suggest(str(value), catalog.names(slot)), config.place(path)
        )
    entry = catalog.find(class_of(value))
    if entry is None:
        if "." in class_of(value) and not class_of(value).startswith("lit_group_rl."):
            return _refuse_foreign(config, path, value) if not user_code else None
        fix = f"{suggest(class_of(value).rsplit('.', 1)[-1], catalog.names(slot))} (lit-group-rl ls {slot})"
        raise Refusal(path, f"'{class_of(value)}' is not known", fix, config.place(path))
    if entry.name not in catalog.names(slot):
        what = f"'{entry.name}' does not fit this slot"
        fits = ", ".join(catalog.slots_of(entry.name))
        fix = f"It fits: {fits}. " if fits else ""
        raise Refusal(path, what, fix + suggest("", catalog.names(slot)), config.place(path))
    if isinstance(value, dict):
        extra = set(value) - {"class_path", "init_args", "dict_kwargs"}
        if extra:
            word = sorted(extra)[0]
            raise Refusal(f"{path}.{word}", "stands beside class_path", "Move it under init_args.", config.place(path))
    options = options_of(value)
    _check_keys(config, path, options, entry)
    for name, inner in options.items():
        _check_nested(config, f"{path}.{name}", entry.options[name].annotation, inner, user_code)
    return None


def _check_nested(config: Composed, path: str, annotation: str, value: Any, user_code: bool) -> None:
    """Components inside components: schedules, sources of a mixture."""
    if isinstance(value, dict) and not is_component(value):
        for name, inner in value.items():
            _check_nested(config, f"{path}.{name}", annotation, inner, user_code)
        return
    slot = next((s for s in catalog.slots() if catalog.slots()[s] in annotation), None)
    slot = "schedule" if slot is None and "Number" in annotation else slot
    if slot and is_component(value):
        _check_component(config, path, slot, value, user_code)
    elif not user_code and isinstance(value, dict):
        _refuse_foreign(config, path, value)


def _refuse_foreign(config: Composed, path: str, value: Any) -> None:
    name = class_of(value)
    if not name.startswith(("lit_group_rl.", "torch.optim.")) and "." in name:
        fix = "Leave out --no-user-code if you trust that file."
        raise Refusal(path, f"'{name}' is code from outside the package", fix, config.place(path))


def _check_keys(config: Composed, path: str, options: dict[str, Any], entry: catalog.Entry) -> None:
    for name in options:
        if name not in entry.options:
            _unknown(config, f"{path}.{name}", name, entry.options, of=entry.name)


def _check_complete(config: Composed) -> None:
    for root, owner in catalog.ROOTS.items():
        _require(config, root, config.values.get(root) or {}, catalog.entry(owner))


def _require(config: Composed, path: str, options: dict[str, Any], entry: catalog.Entry | None) -> None:
    for name, option in (entry.options if entry else {}).items():
        given = any(key.startswith(f"{path}.{name}") for key in config.options())
        if option.default is catalog.REQUIRED and options.get(name) is None and not given:
            assert entry is not None
            what = f"missing; {entry.name} needs it ({option.doc or option.annotation})".rstrip(".")
            raise Refusal(f"{path}.{name}", what, f"Set --{path}.{name}=...", config.place(path))
    for name, value in options.items():
        parts = value if isinstance(value, dict) and not is_component(value) else {"": value}
        for key, part in parts.items():
            if is_component(part):
                at = f"{path}.{name}.{key}".rstrip(".")
                _require(config, at, options_of(part), catalog.find(class_of(part)))


def _unknown(config: Composed, path: str, word: str, known: Iterable[str], of: str = "") -> None:
    whose = f" of {of}" if of else ""
    raise Refusal(path, f"'{word}' is not an option{whose}", suggest(word, list(known)), config.place(path))


def _check_option(config: Composed, path: str) -> None:
    """A dotted option of the command line: each part must exist as far as the catalog knows."""
    path = path.removesuffix("+")
    parts = [p for p in path.split(".") if p not in ("init_args",)]
    if parts[0] in ("help", "h", "print_config", "ckpt_path") or parts[-1] == "help":
        return
    if parts[0] not in TOP:
        known = [*TOP, *(f"model.{n}" for n in _names("model")), *(f"data.{n}" for n in _names("data"))]
        near = closest(parts[0], TOP) or next((k for k in known if k.endswith(f".{parts[0]}")), None)
        near = near or next(iter(difflib.get_close_matches(path, known, 1)), None)
        raise Refusal(f"--{path}", "is not an option", f"Did you mean --{near}?" if near else suggest("", TOP))
    if parts[0] not in catalog.ROOTS or len(parts) < 2:
        return
    if parts[1] not in _names(parts[0]):
        _unknown(config, f"--{path}", parts[1], _names(parts[0]), of=parts[0])
    for end in range(2, len(parts)):
        try:
            value = config.at(".".join(parts[:end]))
        except KeyError:
            return
        entry = catalog.find(class_of(value)) if is_component(value) else None
        if entry and parts[end] not in entry.options and parts[end] not in ("class_path", "dict_kwargs"):
            _unknown(config, f"--{path}", parts[end], entry.options, of=entry.name)


def _names(root: str) -> list[str]:
    entry = catalog.entry(catalog.ROOTS[root])
    return list(entry.options) if entry else []
