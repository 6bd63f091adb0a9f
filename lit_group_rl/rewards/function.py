"""A reward that is a function of the user's own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import RecipeError, Sample

GIVEN = ("prompts", "completions", "answers", "samples")
"""Names that every function may ask for; each is a list with one entry per completion."""


@dataclass(frozen=True)
class FunctionReward(Reward):
    """Calls ``fn`` once per batch with the arguments it names, any of

        prompts, completions, answers, samples, and every other column of the data by its name,

    each a list with one entry per completion.  It returns a list of as many numbers, None to abstain.  It may be
    ``async``.  The working folder is importable, so ``my_rewards.score`` finds ``my_rewards.py`` beside you.
    """

    fn: str
    """Dotted path of the function: ``package.module.function``."""
    weight: Number = 1.0
    """Weight in the total."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved."""
    range: tuple[float, float] | None = None
    """Smallest and largest score; what lies outside is clamped, with a warning."""

    def __post_init__(self) -> None:
        function = load_function(self.fn)
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_wanted", _wanted(self.fn, function))

    def score(self, samples: Sequence[Sample]) -> Any:
        wanted: dict[str, bool] = self._wanted  # type: ignore[attr-defined]
        given = {
            "prompts": [s.prompt for s in samples],
            "completions": [s.completion for s in samples],
            "answers": [s.answer for s in samples],
            "samples": list(samples),
        }
        columns = sorted({name for s in samples for name in s.fields if name not in given})
        given |= {name: [s.fields.get(name) for s in samples] for name in columns}
        missing = [name for name, needed in wanted.items() if needed and name not in given and name != "**"]
        if missing:
            raise RecipeError(
                f"{self.fn}: asks for {', '.join(missing)}, but it is given {', '.join(given)}. "
                "Rename the argument, give it a default, or add the column to the data"
            )
        arguments = given if "**" in wanted else {name: given[name] for name in wanted if name in given}
        result = self._function(**arguments)  # type: ignore[attr-defined]
        return _finished(result) if inspect.isawaitable(result) else result


def load_function(path: str) -> Callable[..., Any]:
    """The function at a dotted path; RecipeError names what could not be found."""
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise RecipeError(f"fn: {path!r} is not a dotted path. Write module.function, e.g. my_rewards.score")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise RecipeError(
                f"fn: no module {error.name!r} for {path!r}. Put {error.name}.py into {here} or install it"
            ) from None
        raise RecipeError(f"fn: {path!r} needs the module {error.name!r}, which is not installed. Install it") from None
    function = getattr(module, name, None)
    if not callable(function):
        what = "has no" if function is None else "is not a function:"
        raise RecipeError(f"fn: {module_name} {what} {name!r}. It has {', '.join(_functions(module)) or 'none'}")
    return function


def _functions(module: Any) -> list[str]:
    return [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]


def _wanted(path: str, function: Callable[..., Any]) -> dict[str, bool]:
    """Argument name -> is it required; '**' stands for all there is."""
    wanted = {}
    for name, p in inspect.signature(function).parameters.items():
        if p.kind is p.VAR_KEYWORD:
            wanted["**"] = False
        elif p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise RecipeError(
                f"{path}{inspect.signature(function)}: argument {name!r} cannot be given by name. "
                f"Arguments are passed by name: any of {', '.join(GIVEN)}, and columns of the data"
            )
        else:
            wanted[name] = p.default is p.empty
    if not wanted:
        raise RecipeError(
            f"{path}(): takes no arguments, so it cannot tell completions apart. "
            f"Name any of {', '.join(GIVEN)}, and columns of the data"
        )
    return wanted


def _finished(pending: Any) -> Any:
    async def wait() -> Any:
        return await pending

    return _run(wait())


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, also where a loop is already running (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    out: list[Any] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            out.append(asyncio.run(coroutine))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return out[0]
