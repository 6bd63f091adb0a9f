"""Score completions while others are still being drawn."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lit_group_rl.rewards.base import Reward
from lit_group_rl.types import Sample

Key = tuple[Any, ...]


class EarlyScores:
    """Scores by the rewards that say ``early``, called in threads of their own with one completion at a time.

    What is not scored when the batch is complete is left to the reward's ordinary call, so a score never depends on
    which of both came first.
    """

    def __init__(self, rewards: Mapping[str, Reward]) -> None:
        self._lines = {name: _Line(reward) for name, reward in rewards.items() if reward.early}
        for line in self._lines.values():
            weakref.finalize(self, line.close)

    @contextmanager
    def listening(self, policy: Any) -> Iterator[None]:
        """Inside, what ``policy`` has drawn is scored as soon as it is complete."""
        policy.on_completion = self._tell if self._lines else None
        try:
            yield
        finally:
            policy.on_completion = None

    def _tell(self, sample: Sample) -> None:
        for line in self._lines.values():
            line.put(sample)

    def take(self, name: str, samples: Sequence[Sample]) -> dict[int, Any]:
        """Place in ``samples`` -> what the reward gave, for those it came to; the others are forgotten."""
        return self._lines[name].take(samples) if name in self._lines else {}


class _Line:
    """The completions that wait for one reward."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self._waiting: deque[Sample] = deque()
        self._done: dict[Key, tuple[Sample, Any]] = {}
        self._changed = threading.Condition()
        self._threads = 0
        self._busy = 0
        self._closed = False

    def put(self, sample: Sample) -> None:
        with self._changed:
            self._waiting.append(sample)
            self._changed.notify_all()
            if self._threads < self.reward.at_once and len(self._waiting) > self._threads - self._busy:
                self._threads += 1
                # a daemon: a scorer that hangs must not hold up the end of the program
                threading.Thread(target=self._work, name=type(self.reward).__name__, daemon=True).start()

    def take(self, samples: Sequence[Sample]) -> dict[int, Any]:
        with self._changed:
            self._waiting.clear()
            self._changed.wait_for(lambda: not self._busy)
            done, self._done = self._done, {}
        return {i: done[_key(s)][1] for i, s in enumerate(samples) if _key(s) in done}

    def close(self) -> None:
        """Let the threads end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                sample = self._waiting.popleft()
                self._busy += 1
            found: list[Any] = []
            with suppress(Exception):  # the ordinary call meets it too, and knows what to do with it
                found = list(self.reward.score([sample.copied()]))
            with self._changed:
                if len(found) == 1:
                    self._done[_key(sample)] = sample, found[0]
                self._busy -= 1
                self._changed.notify_all()


def _key(sample: Sample) -> Key:
    # prompt and columns by identity: both are objects of the data, alive as long as the entry, and cannot be hashed
    return id(sample.prompt), id(sample.fields), sample.answer, sample.completion, sample.num_tokens, sample.truncated
