"""Lines on the console that do not break the live line, and text that does not break the console."""

from __future__ import annotations

import shutil
import sys

from lit_group_rl.plain_text import safe as safe

CLEAR = "\r\x1b[2K"
MARKUP = "\\`*_[]<>&|~#!"
TEXT_LIMIT = 400


class Console:
    """Standard output with at most one live line, which the next line or live line replaces."""

    def __init__(self) -> None:
        self._live = False

    @property
    def terminal(self) -> bool:
        """Whether someone looks at it as it happens."""
        return sys.stdout.isatty()

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._write((CLEAR if self._live else "") + text + "\n")
        self._live = False

    def live(self, text: str) -> None:
        """Show a line that the next one replaces; on a terminal only, cut to its width."""
        if not self.terminal:
            return
        # a line that wraps cannot be cleared
        width = shutil.get_terminal_size().columns - 1
        self._write(CLEAR + (text if len(text) <= width else text[: max(0, width - 1)] + "…"))
        self._live = True

    def end(self) -> None:
        """Leave the live line behind."""
        if self._live:
            self._write("\n")
        self._live = False

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        try:
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
        except BrokenPipeError:
            # whoever read the output (head, less) is gone; the run is not over
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115


CONSOLE = Console()
"""The one of this process: callbacks share it so that they do not write into each other's live line."""


def cell(text: str) -> str:
    """``text`` as Markdown that shows it as it is, on one line, inside a table cell too; empty is shown as ∅."""
    return "".join(f"&#{ord(c)};" if c in MARKUP else c for c in safe(text, TEXT_LIMIT)) or "∅"
