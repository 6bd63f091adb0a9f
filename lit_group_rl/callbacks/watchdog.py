"""What every process is doing when nothing moves any more."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import Any

from lightning.pytorch import Callback

from lit_group_rl.functional.collectives import rank
from lit_group_rl.pulse import PULSE

HUNG = 4
"""Exit code of a run that hung."""


class Watchdog(Callback):
    """Prints stage, work and Python stack of this process once nothing has moved for a while, and ends a hung run.

    A process waiting for another one is one that does not move: with several, all of them print, and the one whose
    stack is in no exchange is the culprit.  A process whose launcher has been killed ends itself.
    """

    def __init__(self, seconds: float = 60.0, leave_after: float | None = 1800.0) -> None:
        """How patient it is.

        Args:
            seconds: Without a sign of life (a drawn token, a reward, a micro-batch) until the stack is printed.
            leave_after: Without one until the process ends with exit code 4; null: never.
        """
        if seconds <= 0 or (leave_after is not None and leave_after < seconds):
            raise ValueError(f"Watchdog: seconds must be above 0 and leave_after no less, got {seconds}, {leave_after}")
        self.seconds, self.leave_after = seconds, leave_after
        self._done = threading.Event()
        self._watched = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch the thread that trains."""
        self._watched, self._parent = threading.get_ident(), os.getppid()
        self._done.clear()
        PULSE.beat()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop watching."""
        self._done.set()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching."""
        self._done.set()

    def _watch(self) -> None:
        told = 0.0
        while not self._done.wait(min(1.0, self.seconds / 4)):
            if rank() and os.getppid() != self._parent:
                os._exit(HUNG)  # the process that started this one is gone: nobody will answer
            still = time.monotonic() - PULSE.moved
            if still < self.seconds:
                told = 0.0
            elif told == 0.0 or still > 2 * told:
                told = still
                self._tell(still)
            if self.leave_after is not None and still > self.leave_after:
                self._say(f"process {rank()}: nothing moved for {still:.0f} s, leaving. Go on from the last checkpoint")
                os._exit(HUNG)

    def _tell(self, still: float) -> None:
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        what = f" ({PULSE.what})" if PULSE.what else ""
        where = f"process {rank()}: nothing moved for {still:.0f} s in stage {PULSE.stage}{what}"
        self._say(f"{where}; its stack:\n{stack}")

    @staticmethod
    def _say(text: str) -> None:
        # not through the buffered stderr, whose lock the stuck thread may hold
        os.write(2, (text.rstrip() + "\n").encode())
