"""Scorers that may hang or raise on what a model writes.  Run as a script in an own process: it imports no torch.

Reads pickled requests from its parent, writes one JSON line for each: {"score": result}, {"refused": text} where the
recipe or the user's function is wrong, or {"error": text, "trace": text} for any other exception.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import numbers
import os
import pickle
import random
import re
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIVEN = ("prompts", "completions", "answers", "samples")
"""Names that every function may ask for; each is a list with one entry per completion."""

_datasets: dict[str, Any] = {}


class Refused(Exception):
    """A function that cannot be a reward; its text says how to mend it."""


class WrongResult(Refused):
    """What a reward returned is no list of numbers."""


@dataclass(frozen=True)
class Sample:
    """What functions in this process see as a sample: ``types.Sample``, whose module imports torch."""

    prompt: Any
    completion: str
    answer: str | None
    fields: dict[str, Any]
    num_tokens: int
    truncated: bool
    turns: tuple[str, ...] = ()


def math_verify(gold: str, answer: str) -> float | None:
    """1 if the answer equals the gold mathematically, else 0; None where the gold cannot be read."""
    import math_verify as library

    # the parent's limit bounds the time, so the library's own alarms are off
    parsed = library.parse(gold, parsing_timeout=None)
    # between dollars any sentence parses, as a product of its letters
    if not parsed and not re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", gold):
        parsed = library.parse(f"${gold}$", parsing_timeout=None)
    if not parsed:
        return None
    found = library.parse(answer, parsing_timeout=None)
    return float(library.verify(parsed, found, timeout_seconds=None))


def reasoning_gym(task: str, config: dict[str, Any], entry: dict[str, Any], answer: str) -> float:
    """The score that the task's own scorer gives."""
    key = repr((task, sorted(config.items())))
    if key not in _datasets:
        import reasoning_gym as library

        _datasets[key] = library.create_dataset(task, size=1, seed=0, **config)
    return float(_datasets[key].score_answer(answer=answer, entry=entry))


def warm(library: str) -> float:
    """Import a library, so that later calls are not charged for it."""
    importlib.import_module(library)
    return 1.0


def sleep(seconds: float) -> float:
    """Does nothing for a while: lets a time limit be tried."""
    import time

    time.sleep(seconds)
    return 1.0


def wanted_by(path: str, folders: list[str]) -> dict[str, bool]:
    """Find the function with ``folders`` as import path; which arguments it declares, and whether each is required."""
    sys.path[:] = folders
    return wanted(path, load_function(path))


def call_function(path: str, arguments: dict[str, list[Any]], expected: int, seed: int) -> list[float]:
    """The function's numbers, NaN = abstained.  It finds the global generators seeded."""
    function = load_function(path)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if "samples" in arguments:
        arguments["samples"] = [Sample(**s) for s in arguments["samples"]]
    result = function(**arguments)
    if inspect.isawaitable(result):
        result = asyncio.run(finished(result))
    try:
        return as_floats(result, expected)
    except WrongResult as error:
        raise WrongResult(f"{path}: {error}") from None


async def finished(pending: Any) -> Any:
    """What something awaitable gives, as a coroutine."""
    return await pending


def load_function(path: str) -> Callable[..., Any]:
    """The function at a dotted path; Refused names what could not be found."""
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise Refused(f"fn: {path!r} is not a dotted path. Write module.function, e.g. my_rewards.score")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise Refused(
                f"fn: no module {error.name!r} for {path!r}. Put {error.name}.py into {here} or install it"
            ) from None
        raise Refused(f"fn: {path!r} needs the module {error.name!r}, which is not installed. Install it") from None
    function = getattr(module, name, None)
    if not callable(function):
        what = "has no" if function is None else "is not a function:"
        own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise Refused(f"fn: {module_name} {what} {name!r}. It has {', '.join(own) or 'none'}")
    return function


def wanted(path: str, function: Callable[..., Any]) -> dict[str, bool]:
    """Argument name -> is it required; '**' stands for all there is."""
    found = {}
    for name, p in inspect.signature(function).parameters.items():
        if p.kind is p.VAR_KEYWORD:
            found["**"] = False
        elif p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise Refused(
                f"fn: {path}{inspect.signature(function)}: argument {name!r} cannot be given by name. "
                f"Arguments are passed by name: any of {', '.join(GIVEN)}, and columns of the data"
            )
        else:
            found[name] = p.default is p.empty
    if not found:
        raise Refused(
            f"fn: {path}(): takes no arguments, so it cannot tell completions apart. "
            f"Name any of {', '.join(GIVEN)}, and columns of the data"
        )
    return found


def as_floats(result: object, expected: int) -> list[float]:
    """What a reward returned as floats, NaN for None or an exception; WrongResult says what else it is.

    Takes lists, tuples, one-dimensional arrays and tensors of None, bool, int, float, or 0-d arrays and tensors.
    """
    fix = f"Return a list of {expected} numbers, one per completion in order, None to abstain"
    values: Any = list(result) if getattr(result, "ndim", None) == 1 else result  # type: ignore[call-overload]
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise WrongResult(f"returned {type(result).__name__} ({_short(result)}) where a list is due. {fix}")
    if len(values) != expected:
        raise WrongResult(f"returned {len(values)} values for {expected} completions. {fix}")
    return [_float(value, i, fix) for i, value in enumerate(values)]


def _float(value: Any, index: int, fix: str) -> float:
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, Exception):
        return math.nan
    if not isinstance(value, numbers.Real):
        raise WrongResult(f"value {index} is {type(value).__name__} ({_short(value)}), not a number. {fix}")
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, -1 if value < 0 else 1)


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it is gone, however that ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _read(stream: Any, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        sys.exit(0)
    return data


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    die_with_parent()
    # what a scorer prints must not mix with the answers, and what it reads must not be requests
    out, source = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        (size,) = struct.unpack("<Q", _read(source, 8))
        try:
            name, arguments = pickle.loads(_read(source, size))
            reply = {"score": globals()[name](*arguments)}
        except Refused as error:
            reply = {"refused": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
