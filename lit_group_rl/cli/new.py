"""``new``: a component of one's own that works, with a test, to be changed from there."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import split
from lit_group_rl.cli.new_templates import TEMPLATES, TEST, Template
from lit_group_rl.cli.refusal import Refusal, closest, suggest

FOLDER = "my_parts"
EXAMPLE = "For example lit-group-rl new advantage median_baseline."


def new(argv: Sequence[str]) -> int:
    """``new KIND NAME [--folder=my_parts]``: writes the component and its test, and says what to do next."""
    words, options = split(argv)
    for option, _ in options:
        if option != "folder":
            raise Refusal(f"--{option}", "is not an option of new", suggest(option, ["--folder"]))
    if len(words) != 2:
        raise Refusal("new", f"takes a kind and a name, got {len(words)} words", f"{EXAMPLE} Kinds: {_kinds()}.")
    template = _template(words[0])
    name, class_name = _names(words[1], template)
    folder = Path(dict(options).get("folder") or FOLDER)
    if folder.is_absolute() or not folder.parts or not all(map(_importable, folder.parts)):
        raise Refusal("--folder", f"'{folder}' cannot be imported from here", "Name a folder below this one: my_parts.")
    module = ".".join([*folder.parts, name])
    files = {
        folder / f"{name}.py": _filled(template.code, name, class_name),
        folder / f"test_{name}.py": _test(template, module, class_name),
    }
    for path in files:
        if path.exists():
            raise Refusal("new", f"{path} exists, and is left as it is", "Choose another name, or remove the file.")
    _write(folder, files)
    print(f"wrote {folder / f'{name}.py'}: {template.article} that works, change it into yours")
    print(f"wrote {folder / f'test_{name}.py'}: does it keep the contract of its slot?")
    option = _filled(template.option, name, class_name).replace("PATH", f"{module}.{class_name}")
    print(f"next  pytest {folder / f'test_{name}.py'}")
    print(f"      lit-group-rl check grpo {shlex.quote(option)}")
    print(f"      lit-group-rl fit grpo {shlex.quote(option)}")
    return 0


def _kinds() -> str:
    return ", ".join(TEMPLATES)


def _template(word: str) -> Template:
    kind = word.replace("-", "_")
    found = TEMPLATES.get(kind) or next((t for t in TEMPLATES.values() if t.slot == kind), None)
    if found is not None:
        return found
    if word in catalog.slots():
        base = catalog.entry(catalog.slots()[word])
        where = f"Subclass {base.path}" if base else "Subclass its base"
        fix = f"{where}, after one of: {', '.join(catalog.names(word))}. With a template: {_kinds()}."
        raise Refusal("new", f"there is no template for a {word}", fix)
    known = [*TEMPLATES, *(t.slot for t in TEMPLATES.values())]
    near = closest(kind, known)
    raise Refusal("new", f"'{word}' is no kind", (f"Did you mean '{near}'? " if near else "") + f"Known: {_kinds()}.")


def _names(word: str, template: Template) -> tuple[str, str]:
    """(name of the file, name in it): median_baseline and MedianBaseline, however it was written."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word.removesuffix(".py")).replace("-", "_").lower()
    if not _importable(name) or name.startswith("_"):
        raise Refusal("new", f"'{word}' cannot name a Python module", "Use letters, digits and _, a letter first.")
    if template.slot == "rewards":
        return name, name
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if catalog.entry(class_name) is not None:
        fix = f"Choose another name, or look at it: lit-group-rl ls {class_name}."
        raise Refusal("new", f"{class_name} is a class of the kit already", fix)
    return name, class_name


def _importable(part: str) -> bool:
    return part.isidentifier() and part.isascii() and not keyword.iskeyword(part)


def _filled(text: str, name: str, class_name: str) -> str:
    return re.sub(r"\bNAME\b", name, re.sub(r"\bCLASS\b", class_name, text))


def _test(template: Template, module: str, class_name: str) -> str:
    made = f"{class_name}()"
    if template.slot == "rewards":
        made = f'{class_name}, right=[("4", "4"), ("it is 4", "4")], wrong=[("5", "4"), ("", "4")]'
    text = TEST.replace("CLASS", class_name).replace("CHECK", template.check)
    return text.replace("MODULE", module).replace("MADE", made)


def _write(folder: Path, files: dict[Path, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for home in (folder, *folder.parents[:-1]):  # packages, so that pytest finds them from any folder
            if not (home / "__init__.py").exists():
                (home / "__init__.py").touch()
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refusal("new", f"{folder} cannot be written: {error.strerror}", "Choose another --folder.") from None
