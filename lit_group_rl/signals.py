"""Leave politely: the first signal ends the run at its last finished RL step, a second one ends it at once.

A stage is a part of a step in which no process waits for another (sampling, scoring, evaluation).  Inside a stage a
signal takes effect immediately, whatever runs; outside it is remembered.  All processes leave a stage together: what
happened on one of them, a signal or an error, is known to all before anything is exchanged again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lit_group_rl.functional.collectives import all_max, rank

FAILED = 1 << 20
"""Beyond every signal number: an error outranks a signal when processes compare what happened."""
ECHO_SECONDS = 0.5
"""Launchers pass on a signal that the terminal has already sent to everybody: that is not asking twice."""


class Stopped(BaseException):
    """The run was asked to stop.  No Exception, so that nothing that survives a reward's errors survives this."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


class PeerFailed(RuntimeError):
    """Another process raised; it tells why."""


class StopSignals:
    """SIGTERM and Ctrl-C while the training loop runs."""

    def __init__(self) -> None:
        self.received = 0
        self._when = 0.0
        self._immediate = False
        self.agreed = False
        """All processes have left a stage with an error or a signal: they may still exchange something."""

    def install(self) -> None:
        """Take the two signals over; Lightning gives them back when the trainer is done."""
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: Any) -> None:
        if self.received:
            if time.monotonic() - self._when > ECHO_SECONDS:
                os._exit(128 + signum)
            return
        self.received, self._when = signum, time.monotonic()
        if rank() == 0:
            # no print: it may have been interrupted in the middle of another
            os.write(2, b"\nstopping, with a checkpoint of the last finished RL step (once more: leave at once)\n")
        if self._immediate:
            raise Stopped(signum)

    @contextmanager
    def stage(self, device: torch.device) -> Iterator[None]:
        """All processes enter and leave together; raises Stopped if any was asked to stop, PeerFailed if one failed."""
        error: Exception | None = None
        try:
            self._immediate = True
            if self.received:
                raise Stopped(self.received)
            yield
        except Stopped:
            pass
        except Exception as e:
            error = e
        finally:
            self._immediate = False
        what = FAILED if error is not None else self.received
        worst = int(all_max(torch.tensor(what, device=device)))
        self.agreed = worst > 0
        if error is not None:
            raise error
        if worst == FAILED:
            raise PeerFailed("another process failed, see its error")
        if worst:
            raise Stopped(worst)
