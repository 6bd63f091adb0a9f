"""Where the process is and when it last moved, for the watchdog.  One per process, written in passing."""

from __future__ import annotations

import time


class Pulse:
    """The present stage, what it works on, and the time of the last sign of life."""

    def __init__(self) -> None:
        self.stage = "starting"
        self.what = ""
        self.moved = time.monotonic()

    def at(self, stage: str, what: str = "") -> None:
        """A stage begins, or goes on to its next piece of work."""
        self.stage, self.what = stage, what
        self.beat()

    def beat(self) -> None:
        """Something moved."""
        self.moved = time.monotonic()


PULSE = Pulse()
