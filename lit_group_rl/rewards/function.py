"""A reward that is a function of the user's own."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_group_rl.functional.rng import seed_of
from lit_group_rl.rewards._scorers import Refused, finished, load_function, wanted
from lit_group_rl.rewards.base import Outcome, Reward, ScorerError, ScorerTimeout
from lit_group_rl.rewards.worker import START_SECONDS, Workers
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import RecipeError, Sample

log = logging.getLogger(__name__)

Scores = list[float | Exception | None]


@dataclass(frozen=True)
class FunctionReward(Reward):
    """Calls ``fn`` with the arguments it names, any of

        prompts, completions, answers, samples, and every other column of the data by its name,

    each a list with one entry per completion.  It returns a list of as many numbers, None to abstain.  It may be
    ``async``.  The working folder is importable, so ``my_rewards.score`` finds ``my_rewards.py`` beside you.

    The function runs in a process of its own, which is killed and replaced when a call passes ``seconds``.  A call is
    for the whole batch; only if it raises or runs out of time is each completion scored by a call of its own.  A
    function that compares completions with each other then sees lists of one.

    With ``one_by_one`` that is how it is called from the start.

    Each call finds ``random``, and numpy and torch if it has imported them, seeded by run, RL step and reward, so a
    resumed run draws the same numbers.  Which of them a completion gets depends on the batch around it: a function
    that draws makes a run depend on the number of processes.  So does a limit that is hit, as time is not repeatable.
    """

    fn: str
    """Dotted path of the function: ``package.module.function``."""
    weight: Number = 1.0
    """Weight in the total."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved."""
    range: tuple[float, float] | None = None
    """Smallest and largest score; what lies outside is clamped, with a warning."""
    seconds: float = 5.0
    """Wall-clock limit of one call."""
    batch_seconds: float = 60.0
    """Wall-clock limit of one process's completions of a step; what is left then counts as timed out."""
    on_error: Outcome = "abstain"
    """A completion on which the function raises is not scored; or gets the minimum; or ends the run."""
    on_timeout: Outcome = "minimum"
    """A completion on which it hangs gets the lowest of ``range``, without one the lowest score of the batch, at most
    0; or is not scored; or ends the run."""
    in_process: bool = False
    """Call it in the process that trains, for functions that need its state; then nothing limits its time."""
    one_by_one: bool = False
    """Every completion by a call of its own, made as soon as it is drawn, while others are still being drawn: for slow
    functions that compare no completions.  A call is then seeded by its prompt and completion alone."""
    workers: int = 1
    """Processes that call it side by side, where completions are scored one by one."""

    def __post_init__(self) -> None:
        require_number(self, "seconds", low=0.01)
        require_number(self, "batch_seconds", low=0.01)
        require(
            self.range is None or self.range[0] < self.range[1], self, "range", "must have the smaller number first"
        )
        require(not (self.in_process and self.one_by_one), self, "one_by_one", "needs in_process: false")
        require(self.workers == 1 or self.one_by_one, self, "workers", "above 1 needs one_by_one: true")
        require(self.workers >= 1, self, "workers", "must be at least 1")
        if self.in_process:
            try:
                function = load_function(self.fn)
                names = wanted(self.fn, function)
            except Refused as error:
                raise RecipeError(str(error)) from None
            object.__setattr__(self, "_function", function)
        else:
            workers = Workers(self.workers, "wanted_by", self.fn, list(sys.path), quiet=False)
            try:
                names = workers.all[0].start()
            except ScorerError as error:
                workers.all[0].close()
                notes = "\n".join(getattr(error, "__notes__", []))
                raise RecipeError(f"fn: importing {self.fn} raised {error}. Mend its module\n{notes}".strip()) from None
            except ScorerTimeout:
                raise RecipeError(
                    f"fn: importing {self.fn} takes more than {START_SECONDS:g} s. Move its long work into the function"
                ) from None
            object.__setattr__(self, "_workers", workers)
        object.__setattr__(self, "_wanted", names)

    @property
    def early(self) -> bool:  # type: ignore[override]
        return self.one_by_one

    @property
    def at_once(self) -> int:  # type: ignore[override]
        return self.workers

    def score(self, samples: Sequence[Sample]) -> Any:
        if self.in_process:
            result = self._function(**self._arguments(samples))  # type: ignore[attr-defined]
            return _run(result) if inspect.isawaitable(result) else result
        end = time.monotonic() + self.batch_seconds
        if self.one_by_one:
            return self._each(samples, 0, end)
        seed = random.getrandbits(63)
        whole = self._call(samples, seed, end)
        if not isinstance(whole, Exception):
            return whole
        if len(samples) == 1:
            return [whole]
        values = self._each(samples, seed, end)
        if isinstance(whole, ScorerTimeout) and not any(isinstance(v, Exception) for v in values):
            log.warning(
                "reward %s needs more than seconds=%g for %d completions, and was called again for each: raise seconds",
                self.fn,
                self.seconds,
                len(samples),
            )
        return values

    def _each(self, samples: Sequence[Sample], seed: int, end: float) -> Scores:
        # seeded by content, not by place, so that the score of a completion does not depend on the batch
        def one(s: Sample) -> float | Exception:
            given = self._call([s], seed_of(seed, s.prompt, s.completion), end)
            return given if isinstance(given, Exception) else given[0]

        each: Scores = self._workers.each(one, samples)  # type: ignore[attr-defined]
        return each

    def _call(self, samples: Sequence[Sample], seed: int, end: float) -> list[float] | Exception:
        left = end - time.monotonic()
        if left <= 0:
            return ScorerTimeout(f"the limit batch_seconds={self.batch_seconds:g} was used up")
        arguments = self._arguments(samples)
        if "samples" in arguments:
            fields = [f.name for f in dataclasses.fields(Sample)]
            arguments["samples"] = [{name: getattr(s, name) for name in fields} for s in samples]
        request = ("call_function", self.fn, arguments, len(samples), seed)
        try:
            result: list[float] = self._workers.call(*request, seconds=min(self.seconds, left))  # type: ignore[attr-defined]
        except (ScorerTimeout, ScorerError) as error:
            return error.with_traceback(None)  # the report is about the scorer, not about the waiting for it
        return result

    def _arguments(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        names: dict[str, bool] = self._wanted  # type: ignore[attr-defined]
        given: dict[str, list[Any]] = {
            "prompts": [s.prompt for s in samples],
            "completions": [s.completion for s in samples],
            "answers": [s.answer for s in samples],
            "samples": list(samples),
        }
        columns = sorted({name for s in samples for name in s.fields if name not in given})
        given |= {name: [s.fields.get(name) for s in samples] for name in columns}
        missing = [name for name, needed in names.items() if needed and name not in given and name != "**"]
        if missing:
            raise RecipeError(
                f"{self.fn}: asks for {', '.join(missing)}, but it is given {', '.join(given)}. "
                "Rename the argument, give it a default, or add the column to the data"
            )
        return given if "**" in names else {name: given[name] for name in names if name in given}


def _run(pending: Any) -> Any:
    """Run to the end, also where a loop is already running (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finished(pending))
    out: list[Any] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            out.append(asyncio.run(finished(pending)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return out[0]
