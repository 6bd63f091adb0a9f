"""YAML read strictly, every key with its line: what a loose loader would swallow is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from lit_group_rl.cli.refusal import Place, Refusal, shown

Places = dict[tuple[str, ...], Place]


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="anchors are not used in recipes", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


# YAML 1.1 takes 1e-6 for text
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def load(path: Path) -> tuple[dict[str, Any], Places]:
    """A file's content and where each key stands."""
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise Refusal(
            shown(path), f"not UTF-8 text at byte {error.start}", "Save it as UTF-8.", Place(str(path), line)
        ) from None
    except OSError as error:
        raise Refusal(shown(path), f"cannot be read: {error.strerror}", "Check the path and its rights.") from None
    places: Places = {}
    value = _parse(text, str(path), places)
    if value is None:
        return {}, places
    if not isinstance(value, dict):
        raise Refusal(
            shown(path), f"holds a {type(value).__name__}, not keys with values", "See `lit-group-rl cat grpo`."
        )
    return value, places


def value_of(text: str, option: str) -> Any:
    """What the value of a command-line option means: YAML, or else the text itself."""
    try:
        node = _Loader(text).get_single_node()
    except yaml.YAMLError:
        return text
    return None if node is None else _construct(_Loader(""), node, (option,), None, {})


def _parse(text: str, file: str, places: Places) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _construct(loader, node, (), file, places)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1) if mark else None
        raise Refusal(
            shown(file), _problem(error), _FIX.get(error.problem or "", "Mend the YAML there."), place
        ) from None
    except yaml.reader.ReaderError as error:
        place = Place(file, text[: error.position].count("\n") + 1)
        what = f"a control character ({error.character!r}) is not allowed in YAML"
        raise Refusal(shown(file), what, "Delete it.", place) from None
    except RecursionError:
        raise Refusal(shown(file), "nested too deeply", "A recipe needs about five levels.") from None
    finally:
        if loader is not None:
            loader.dispose()


_FIX = {"anchors are not used in recipes": "Write the value out."}


def _problem(error: yaml.MarkedYAMLError) -> str:
    if "'\\t'" in (error.problem or ""):
        return "not valid YAML: a tab where spaces are needed"
    context = f" {error.context}," if error.context else ""
    return error.problem if error.problem in _FIX else f"not valid YAML:{context} {error.problem}"


def _construct(loader: _Loader, node: yaml.Node, path: tuple[str, ...], file: str | None, places: Places) -> Any:
    here = Place(file, node.start_mark.line + 1) if file else None
    dotted = ".".join(path) or "value"
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*path, str(i)), file, places) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = _key(key_node, file), key_node.start_mark.line + 1
            if key in seen:
                place = Place(file, line) if file else None
                raise Refusal(".".join((*path, key)), f"is given twice, also on line {seen[key]}", "Keep one.", place)
            seen[key] = line
            if file:
                places[(*path, key)] = Place(file, line)
            result[key] = _construct(loader, value_node, (*path, key), file, places)
        return result
    value = loader.construct_object(node)
    plain = getattr(node, "style", None) is None and isinstance(value, str)
    plain = plain and re.fullmatch(r"[-+]?\.?(nan|inf(inity)?)", value.lower()) is not None
    if plain or (isinstance(value, float) and not math.isfinite(value)):
        raise Refusal(dotted, f"{node.value} is not a number that can be used", "Give a finite number, or null.", here)
    return value


def _key(node: yaml.Node, file: str | None) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:merge":
        raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=node.start_mark)
    return node.value
