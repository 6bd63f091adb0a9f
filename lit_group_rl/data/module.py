"""Prompts of every RL step, the same for any number of processes and after any interruption."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
from lightning.pytorch.trainer.states import TrainerFn

from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.context import OnLongPrompt, fitting
from lit_group_rl.functional.collectives import all_objects, rank, world_size
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.types import Prompt, RecipeError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepPrompts:
    """This process's prompts of an RL step and their numbers among those of all processes."""

    prompts: list[Prompt]
    positions: list[int]

    def __len__(self) -> int:
        return len(self.prompts)


class PromptStream:
    """Endless passes over the prompts, each in its own order; what comes next is a function of (seed, cursor)."""

    def __init__(self, prompts: Sequence[Prompt], seed: int, cursor: int = 0) -> None:
        self.prompts = prompts
        self.seed = seed
        self.cursor = cursor
        """Prompts taken so far, over all passes."""
        self._order: tuple[int, np.ndarray] | None = None

    def take(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts; a new pass begins where the last one ends."""
        taken = [self._at(self.cursor + i) for i in range(count)]
        self.cursor += count
        return taken

    def _at(self, cursor: int) -> Prompt:
        number, place = divmod(cursor, len(self.prompts))
        if self._order is None or self._order[0] != number:
            order = np.random.default_rng(seed_of(self.seed, "prompts", number)).permutation(len(self.prompts))
            self._order = number, order
        return self.prompts[int(self._order[1][place])]


class PromptData(lightning.pytorch.LightningDataModule):
    """Training prompts as an endless stream, held-out prompts as a list that shares no prompt with it.

    All processes draw the same prompts and each keeps every world-th, so the content of an RL step does not depend
    on the number of processes.

    Args:
        source: where the prompts come from
        prompts_per_step: prompts of one RL step, over all processes
        heldout_size: prompts kept for evaluation
        seed: of the order of the training prompts
        on_long_prompt: refuse prompts that leave no room for a completion, leave them out, or cut their beginning off
    """

    def __init__(
        self,
        source: PromptSource,
        prompts_per_step: int = 32,
        heldout_size: int = 256,
        seed: int = 1,
        on_long_prompt: OnLongPrompt = "error",
    ) -> None:
        super().__init__()
        if prompts_per_step < 1:
            raise RecipeError(f"data.prompts_per_step: must be at least 1, got {prompts_per_step}. Raise it")
        if heldout_size < 0:
            raise RecipeError(f"data.heldout_size: must be at least 0, got {heldout_size}. 0 turns evaluation off")
        self.source = source
        self.prompts_per_step = prompts_per_step
        self.heldout_size = heldout_size
        self.on_long_prompt = on_long_prompt
        # a plain int: a checkpoint holds no other types
        self.seed = int(seed)
        self.train: Sequence[Prompt] = ()
        self.heldout: Sequence[Prompt] = ()
        self._stream: PromptStream | None = None
        self._restored: dict[str, int] = {}
        self._fingerprint = 0

    def setup(self, stage: str | None = None) -> None:
        """Read the prompts, once, and see that every process has read the same."""
        if self._stream is None:
            self.train, self.heldout = self.source.load(self.heldout_size)
            if not self.train:
                raise RecipeError(
                    f"data.source: {type(self.source).__name__} leaves no prompt to train on. "
                    "Lower data.heldout_size or give more data"
                )
            head = [(p.text, p.answer) for part in (self.train, self.heldout) for p in part[:16]]
            self._fingerprint = seed_of(len(self.train), len(self.heldout), head)
            self._stream = PromptStream(self.train, self.seed)
            self._resume()
        if self.prompts_per_step < world_size():
            raise RecipeError(
                f"data.prompts_per_step: {self.prompts_per_step} prompts cannot be shared by {world_size()} processes. "
                "Raise it or use fewer devices"
            )
        if len(set(all_objects(self.fingerprint()))) > 1:
            raise RecipeError(
                f"data.source: {type(self.source).__name__} gives other prompts in each process. "
                "Fix PYTHONHASHSEED or use a source that does not depend on it"
            )

    @property
    def stream(self) -> PromptStream:
        """The training prompts still to come."""
        if self._stream is None:
            self.setup()
        assert self._stream is not None
        return self._stream

    def fingerprint(self) -> int:
        """A number that changes with the sizes and the first prompts of both splits, as they were read."""
        return self._fingerprint

    def fit_context(self, policy: Any, new_tokens: int) -> None:
        """Settle what becomes of prompts that are too long for ``policy``; the same on every process."""
        stream = self.stream
        self.train = fitting(self.train, policy, new_tokens, self.on_long_prompt, "training")
        if self.heldout:
            self.heldout = fitting(self.heldout, policy, new_tokens, self.on_long_prompt, "held-out")
        stream.prompts = self.train

    def more(self, count: int, first_position: int = 0) -> StepPrompts:
        """This process's share of the next ``count`` prompts, numbered from ``first_position``.

        All processes must ask for the same count.
        """
        drawn = self.stream.take(count)
        mine = range(rank(), count, world_size())
        return StepPrompts([drawn[i] for i in mine], [first_position + i for i in mine])

    def train_dataloader(self) -> StepLoader:
        """As many RL steps as the module still has to make."""
        module: Any = self.trainer.lightning_module  # type: ignore[union-attr]
        # a module of another make has no wish of its own
        wanted = lambda: getattr(module, "prompts_wanted", self.prompts_per_step)  # noqa: E731
        return StepLoader(self, getattr(module, "steps_left", max(0, module.steps - module.rl_step)), wanted)

    def val_dataloader(self) -> HeldOutLoader | list[StepPrompts]:
        """This process's held-out prompts; nothing while fitting, where the module evaluates by itself."""
        fitting = self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        return [] if fitting else HeldOutLoader(self.heldout_batches())

    def test_dataloader(self) -> HeldOutLoader:
        """This process's held-out prompts."""
        return HeldOutLoader(self.heldout_batches())

    def predict_dataloader(self) -> HeldOutLoader:
        """This process's held-out prompts."""
        return HeldOutLoader(self.heldout_batches())

    def heldout_share(self) -> StepPrompts:
        """This process's held-out prompts as one batch."""
        mine = range(rank(), len(self.heldout), world_size())
        return StepPrompts([self.heldout[i] for i in mine], list(mine))

    def heldout_batches(self) -> list[StepPrompts]:
        """This process's share of the held-out prompts, in equally many batches on every process."""
        largest = -(-len(self.heldout) // world_size())
        batches = -(-largest // self.prompts_per_step)
        mine = range(rank(), len(self.heldout), world_size())
        return [
            StepPrompts([self.heldout[i] for i in part], list(part))
            for part in (mine[b::batches] for b in range(batches))
        ]

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Prompts are text and stay where they are."""
        return batch

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands, and what it was reading."""
        return {"cursor": self.stream.cursor, "seed": self.seed, "fingerprint": self.fingerprint()}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on where the stream stood."""
        self._restored = dict(state_dict)
        if self._stream is not None:
            self._resume()

    def _resume(self) -> None:
        if not self._restored:
            return
        self.stream.cursor = int(self._restored["cursor"])
        for name, now in (("seed", self.seed), ("fingerprint", self.fingerprint())):
            if self._restored.get(name, now) != now:
                log.warning(
                    "data: the %s of the prompts is not that of the checkpoint, so the prompts from here on are not "
                    "those of an unbroken run",
                    name,
                )
        self._restored = {}


class HeldOutLoader:
    """The batches as one loader; Lightning takes a plain list for several loaders."""

    def __init__(self, batches: list[StepPrompts]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[StepPrompts]:
        return iter(self.batches)


class StepLoader:
    """One batch per RL step, drawn only when asked for.  It has a length because Lightning fetches a batch ahead from
    a loader without one, and the stream would then run ahead of dynamic sampling and of the checkpoint."""

    def __init__(self, data: PromptData, steps: int, wanted: Callable[[], int]) -> None:
        self.data = data
        self.steps = steps
        self.wanted = wanted

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[StepPrompts]:
        for _ in range(self.steps):
            yield self.data.more(self.wanted())
