"""User code of the fault tests: a callback that holds a run in a stage and tells when it is there."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from lit_group_rl import checkpoint
from lit_group_rl.module import LitGroupRL


class HoldIn(Callback):
    """In RL step ``step`` the run writes ``marker`` when it enters ``stage`` and spends ``seconds`` there."""

    def __init__(self, stage: str, step: int, marker: str, seconds: float = 2.0) -> None:
        self.stage, self.step, self.marker, self.seconds = stage, step, Path(marker), seconds

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        module = pl_module
        places = {
            "sampling": (type(module.sampler), "sample"),
            "scoring": (sys.modules["lit_group_rl.module"], "score_rewards"),
            "judging": (LitGroupRL, "judge"),
            "update": (LitGroupRL, "update"),
            "evaluation": (type(module.heldout), "run"),
            "saving": (checkpoint, "_write"),
        }
        owner, name = places[self.stage]
        plain = getattr(owner, name)
        at = self.step - (self.stage not in ("evaluation", "saving"))

        def held(*args: Any, **kwargs: Any) -> Any:
            if module.rl_step == at and not self.marker.exists():
                self.marker.write_text(str(os.getpid()))
                end = time.monotonic() + self.seconds
                while time.monotonic() < end:  # sleeping in slices, as work is: signals come in between
                    time.sleep(0.01)
            return plain(*args, **kwargs)

        setattr(owner, name, held)


class FailIn(Callback):
    """In RL step ``step`` one process raises on entering ``stage``."""

    def __init__(self, stage: str, step: int, rank: int) -> None:
        self.stage, self.step, self.rank = stage, step, rank

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        owner, name = {
            "scoring": (sys.modules["lit_group_rl.module"], "score_rewards"),
            "update": (LitGroupRL, "update"),
        }[self.stage]
        plain = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            if pl_module.rl_step + 1 == self.step and trainer.global_rank == self.rank:
                raise ValueError("no luck")
            return plain(*args, **kwargs)

        setattr(owner, name, failing)
