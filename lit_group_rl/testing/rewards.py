"""The contract of rewards: classes, and plain functions as ``FunctionReward`` calls them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lit_group_rl.rewards._scorers import finished, wanted
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import as_numbers
from lit_group_rl.testing.cases import Case, case, example, order, run_cases
from lit_group_rl.types import RolloutBatch, Sample

REWARD: list[Case] = []
Judged = tuple[str, str]
"""(completion, right answer)."""
TEXTS = (
    "", " ", "\n\n", "0", "nan", "inf", "-1", "1e999", "None", "#### ", "\\boxed{", "<answer>", "</answer><answer>",
    "7" * 5000, "é你好🙂\u202e", "\x00\x1b[2J", "'; DROP TABLE", "(" * 200,
)  # fmt: skip
"""What a policy may write, however odd."""


class Subject:
    """A reward and the rows that it is tried on."""

    def __init__(self, reward: Any, fields: dict[str, Any], right: Sequence[Judged], wrong: Sequence[Judged]) -> None:
        self.reward, self.fields, self.right, self.wrong = reward, fields, right, wrong
        self.name = getattr(reward, "__name__", type(reward).__name__)

    @property
    def whole_batch(self) -> bool:
        """It compares members of a group, or reads more of a batch than its texts."""
        return isinstance(self.reward, Reward) and type(self.reward).score_batch is not Reward.score_batch

    def sample(self, text: str, answer: str | None = "4", prompt: Any = "2+2=") -> Sample:
        """A row of the data with a completion."""
        return Sample(prompt, text, answer, dict(self.fields), max(1, len(text)), False)

    def batch(self) -> RolloutBatch:
        """The example with the columns of the data."""
        batch = example()
        batch.samples = [self.sample(s.completion, s.answer, s.prompt) for s in batch.samples]
        return batch

    def rows(self) -> list[Sample]:
        """The rows of the example."""
        return self.batch().samples

    def raw(self, samples: Sequence[Sample]) -> Any:
        """What it returns for texts."""
        if isinstance(self.reward, Reward):
            return self.reward.score(samples)
        result = self.reward(**arguments(self.reward, self.name, samples))
        return asyncio.run(finished(result)) if inspect.isawaitable(result) else result

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """Scores of texts, NaN = abstained."""
        return as_numbers(_without_failures(self.raw(samples)), len(samples), self.name)

    def batch_scores(self, batch: RolloutBatch) -> list[float]:
        """Scores of a batch, NaN = abstained."""
        if not self.whole_batch:
            return self.scores(batch.samples)
        return as_numbers(_without_failures(self.reward.score_batch(batch)), len(batch), self.name)


def check_reward(
    reward: Reward | Callable[..., Any],
    *,
    right: Sequence[Judged] = (),
    wrong: Sequence[Judged] = (),
    fields: dict[str, Any] | None = None,
    skip: Sequence[str] = (),
) -> None:
    """Raises ContractError unless the reward keeps the contract of ``rewards``.

    ``reward``: an object of a Reward class, or a function as FunctionReward takes it.  ``right`` and ``wrong``:
    (completion, answer) pairs that must, and must not, count as solved.  ``fields``: columns of the data that it reads,
    with a value.
    """
    subject = Subject(reward, dict(fields or {}), right, wrong)
    failed_as: Any = type(subject.name, (), {})() if not isinstance(reward, Reward) else reward
    run_cases(failed_as, [_bound(c, subject) for c in REWARD], skip=skip, fresh=False)


def _bound(one: Case, subject: Subject) -> Case:
    return Case(one.name, one.fix, lambda _: one.run(subject))


def arguments(function: Callable[..., Any], name: str, samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """What FunctionReward would pass."""
    names = wanted(name, function)
    given: dict[str, list[Any]] = {
        "prompts": [s.prompt for s in samples],
        "completions": [s.completion for s in samples],
        "answers": [s.answer for s in samples],
        "samples": list(samples),
    }
    columns = sorted({column for s in samples for column in s.fields})
    given = {column: [s.fields.get(column) for s in samples] for column in columns} | given
    missing = [n for n, needed in names.items() if needed and n not in given and n != "**"]
    assert not missing, (
        f"it asks for {missing[0]!r}, and rows have {', '.join(given)}: pass fields={{{missing[0]!r}: ...}}"
    )
    return given if "**" in names else {n: given[n] for n in names if n in given}


def _without_failures(result: Any) -> Any:
    for given in result if isinstance(result, list | tuple) else ():
        if isinstance(given, Exception):
            raise given
    return result


def _equal(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


@case(REWARD, "shape", "return a list with one number per completion, in order; None abstains")
def _(subject: Subject) -> None:
    batch = subject.batch()
    scores = subject.batch_scores(batch)
    infinite = [s for s in scores if math.isinf(s)]
    assert not infinite, f"a score is {infinite[0]}"


@case(REWARD, "odd texts", "take any text a policy may write: guard parsing, and score what has no answer low")
def _(subject: Subject) -> None:
    for text in TEXTS:
        try:
            (score,) = subject.scores([subject.sample(text)])
        except Exception as error:
            raise AssertionError(f"of the text {text[:20]!r} it raised {type(error).__name__}: {error}") from None
        assert not math.isinf(score), f"the text {text[:20]!r} scores {score}"


@case(REWARD, "no answer", "return None for a row without an answer, if you need one: data need not have them")
def _(subject: Subject) -> None:
    subject.scores([subject.sample("4", None)])


@case(REWARD, "chat prompts", "take a prompt that is a list of messages, or do not read it")
def _(subject: Subject) -> None:
    subject.scores([subject.sample("4", prompt=[{"role": "user", "content": "2+2="}])])


@case(REWARD, "range", "declare range=(lowest, highest) as it is, or leave it out")
def _(subject: Subject) -> None:
    bounds = getattr(subject.reward, "range", None)
    if bounds is not None:
        for score in subject.batch_scores(subject.batch()):
            assert math.isnan(score) or bounds[0] <= score <= bounds[1], f"a score is {score}, outside {bounds}"


@case(REWARD, "order of rows", "score a row by its own text, or by its group; do not use its position")
def _(subject: Subject) -> None:
    batch = subject.batch()
    index = order(batch)
    wanted_ = [subject.batch_scores(batch)[i] for i in index.tolist()]
    for found, old in zip(subject.batch_scores(batch.rows(index)), wanted_, strict=True):
        assert _equal(found, old), f"in another order {old} became {found}"


@case(REWARD, "own row", "do not compare rows in score(): batches are cut anywhere; compare groups in score_batch()")
def _(subject: Subject) -> None:
    if subject.whole_batch:
        batch = subject.batch()
        rows = (batch.group_ids == 1).nonzero().flatten()
        pairs = zip(
            subject.batch_scores(batch.rows(rows)),
            torch.tensor(subject.batch_scores(batch))[rows].tolist(),
            strict=True,
        )
    else:
        rows_ = subject.rows()
        pairs = zip([subject.scores([s])[0] for s in rows_], subject.scores(rows_), strict=True)
    for alone, together in pairs:
        assert _equal(alone, together), f"a row scores {together} beside others and {alone} without them"


@case(REWARD, "repeatable", "draw no random numbers, read no clock: a resumed run must score alike")
def _(subject: Subject) -> None:
    random.seed(1)
    first = subject.batch_scores(subject.batch())
    again = subject.batch_scores(subject.batch())
    for a, b in zip(first, again, strict=True):
        assert _equal(a, b), f"the same completion scores {a}, then {b}"


@case(REWARD, "input left alone", "copy lists and dicts before you change them")
def _(subject: Subject) -> None:
    samples = subject.rows()
    before = copy.deepcopy(samples)
    if isinstance(subject.reward, Reward):
        subject.raw(samples)
    else:
        given = arguments(subject.reward, subject.name, samples)
        shown = copy.deepcopy(given)
        subject.reward(**given)
        assert given == shown, "it changes the lists that it is given"
    assert samples == before, "it changes the samples that it is given"


@case(REWARD, "right and wrong", "mend what it reads as the answer, or solved_at")
def _(subject: Subject) -> None:
    solved_at = getattr(subject.reward, "solved_at", 1.0)
    for pairs, good in ((subject.right, True), (subject.wrong, False)):
        for text, answer in pairs:
            (score,) = subject.scores([subject.sample(text, answer)])
            says = "right" if good else "wrong"
            assert (score >= solved_at) == good, f"{text!r} is {says} for {answer!r} and scores {score}"
