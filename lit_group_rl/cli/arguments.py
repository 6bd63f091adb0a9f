"""Arguments of the commands that take a run: argparse, with refusals in place of its own messages."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NoReturn

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.refusal import Refusal, closest, shown

RUN_HELP = "a run folder (runs/grpo/0001), or below runs/: grpo/0001, grpo for its newest run, 0001 if only one has it"
ROOT = Path("runs")


class Arguments(argparse.ArgumentParser):
    """Parses the words behind a command."""

    def __init__(self, command: str, what: str, closing: str = "") -> None:
        super().__init__(
            prog=f"lit-group-rl {command}",
            description=what,
            epilog=closing,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.command = command

    def error(self, message: str) -> NoReturn:
        """In one line, with the option that was probably meant."""
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        near = closest(unknown[1].partition("=")[0], known) if unknown else None
        fix = f"Did you mean {near}?" if near else f"`lit-group-rl {self.command} --help` explains it."
        raise Refusal(self.command, message, fix)


def find_run(command: str, text: str) -> Path:
    """The run folder that a word of the command line means."""
    path = Path(text).expanduser()
    for folder in (path, *path.parents):
        if (folder / run_folder.CONFIG).is_file() and folder.is_dir():
            return folder
    for home in (path, ROOT / text):
        if home.is_dir() and (found := run_folder.runs(home.parent, home.name)):
            return found[-1]
    if (ROOT / text / run_folder.CONFIG).is_file():
        return ROOT / text
    numbered = [p for p in sorted(ROOT.glob("*/*")) if re.fullmatch(r"0*\d+", text) and p.name == f"{int(text):04d}"]
    if len(numbered) == 1:
        return numbered[0]
    if numbered:
        raise Refusal(
            command, f"'{text}' is a run of several recipes", f"Give one of {', '.join(map(shown, numbered))}"
        )
    newest = sorted(ROOT.glob(f"*/*/{run_folder.CONFIG}"), key=lambda p: p.stat().st_mtime)[-5:]
    known = ", ".join(shown(p.parent) for p in newest)
    what = "is no run folder" if path.exists() else "does not exist"
    raise Refusal(command, f"{text} {what}", f"Runs here: {known}" if known else "Give a run folder: runs/grpo/0001")
