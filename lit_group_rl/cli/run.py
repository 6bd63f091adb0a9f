"""``fit``, ``validate``, ``test``, ``predict``: the merged recipe through LightningCLI, in a numbered run folder."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.changes import refuse_changes
from lit_group_rl.cli.compose import Composed, compose, split
from lit_group_rl.cli.precheck import check_names
from lit_group_rl.cli.refusal import Refusal, shown


def fit(argv: Sequence[str]) -> int:
    """Train."""
    return _run("fit", argv)


def validate(argv: Sequence[str]) -> int:
    """Held-out evaluation."""
    return _run("validate", argv)


def test(argv: Sequence[str]) -> int:
    """Evaluation of the test prompts."""
    return _run("test", argv)


def predict(argv: Sequence[str]) -> int:
    """Greedy completions."""
    return _run("predict", argv)


def resolved(argv: Sequence[str]) -> str:
    """The whole configuration that a command line means, as YAML."""
    from lit_group_rl.cli.lightning_cli import parse

    cli = parse(prepare(argv))
    return cli.resolved_yaml()


def prepare(argv: Sequence[str], user_code: bool = True) -> Composed:
    """Merge and check the names; what was dropped is told on stderr."""
    if not split(argv)[0]:
        raise Refusal("recipe", "none is given", "For example lit-group-rl fit grpo; lit-group-rl ls shows all.")
    config = compose(argv)
    check_names(config, user_code=user_code)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for notice in config.notices:
            print(f"note: {notice}", file=sys.stderr)
    return config


def _run(command: str, argv: Sequence[str]) -> int:
    if any(a in ("-h", "--help") for a in argv):
        from lit_group_rl.cli.show import help_of

        print(help_of(command))
        return 0
    asked = next((i for i, a in enumerate(argv) if a.partition("=")[0].endswith(".help")), None)
    if asked is not None:
        from lit_group_rl.cli.show import ls

        key, _, name = argv[asked].partition("=")
        slot = key.split(".")[-2]
        return ls([name or next(iter(argv[asked + 1 :]), slot)])
    config = prepare(_with_recipe_of_run(argv))
    quieten()
    from lit_group_rl.cli.lightning_cli import build

    cli = build(config)
    root = Path(cli.config.run_root)
    name = run_folder.checked_name(cli.config.run_name or config.name)
    resume = run_folder.find_run(cli.config.resume, root, name) if cli.config.resume else None
    if resume is None and command != "fit":
        raise Refusal("resume", f"{command} needs the run whose weights are used", "Set --resume=RUN or --resume=auto.")
    if resume is None and cli.config.resume:
        print(f"note: resume: no run of {name} has a checkpoint yet, this is a new one", file=sys.stderr)
    return _start(cli, command, root, name, resume)


def _with_recipe_of_run(argv: Sequence[str]) -> Sequence[str]:
    """``--resume=RUN`` without a recipe uses the configuration that the run left."""
    names, options = split(argv)
    resume = dict(options).get("resume")
    if names or not resume:
        return argv
    path = Path(resume).expanduser()
    config = next((p / run_folder.CONFIG for p in (path, *path.parents) if (p / run_folder.CONFIG).is_file()), None)
    if config is None:
        return argv
    home = config.parent.parent
    return [str(config), *argv, f"--run_root={home.parent}", f"--run_name={home.name}"]


def _start(cli: Any, command: str, root: Path, name: str, resume: Path | None) -> int:
    """Make or take the run folder, and run the trainer in it."""
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.utilities.rank_zero import rank_zero_only  # type: ignore[attr-defined]

    from lit_group_rl.callbacks import MetricsFile, default_callbacks

    written: set[Path] = set()
    problems = cli.model.problems(cli.datamodule.prompts_per_step)
    _refuse_or_warn(problems, cli.composed)
    if command == "fit":
        own_rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
        notes = refuse_changes(resume, cli.resolved_yaml(), cli.config.allow_changes) if resume else []
        folder = resume or run_folder.new_run(root, name, own_rank)
        loggers = [TensorBoardLogger(str(folder), name="", version=""), MetricsFile(folder)]
        try:
            trainer = cli.make_trainer(folder, loggers, default_callbacks(folder, name))
        except Refusal:
            run_folder.remove_empty(folder, root)
            raise
        if own_rank == 0:
            for note in notes:
                print(f"note: {note}", file=sys.stderr)
            before = set(folder.glob("config*.yaml"))
            written = {run_folder.save_config(folder, cli.resolved_yaml())} - before
            print(
                f"run {shown(folder)} · seed {cli.model.seed} · watch: tensorboard --logdir {shown(root)}", flush=True
            )
    else:
        trainer = cli.make_trainer(None, [], [])
    cli.model.resume_from = resume
    try:
        return _guarded(trainer, getattr(trainer, command), cli)
    except Refusal:
        for path in written if resume else ():
            path.unlink()  # the run never had it
        raise


def _refuse_or_warn(problems: Sequence[Any], config: Composed) -> None:
    for problem in problems:
        if not problem.warning:
            raise Refusal(problem.field, problem.message, problem.fix, config.place(problem.field))
        print(f"warning: {problem}", file=sys.stderr)


def _guarded(trainer: Any, run: Any, cli: Any) -> int:
    """Exit codes: what a run says about how it ended."""
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from lit_group_rl.cli.ending import code_of, explained, failed_together
    from lit_group_rl.cli.errors import constructor_refusal
    from lit_group_rl.signals import Stopped
    from lit_group_rl.types import RecipeError

    try:
        result = run(cli.model, datamodule=cli.datamodule)
    except Stopped as stop:
        # of a process that Lightning has started, another code would be taken for a crash and kill the first one
        return stop.exit_code if trainer.is_global_zero else 0
    except SIGTERMException:
        return 143
    except SystemExit as stop:
        if trainer.interrupted:  # Lightning turns Ctrl-C into exit(1)
            return 130
        raise stop
    except RecipeError as error:
        refusal = constructor_refusal(str(error), cli.composed, cli.config)
        if trainer.world_size > 1:
            return failed_together(refusal, Path(trainer.default_root_dir), trainer.global_rank)
        raise refusal from error
    except Exception as fault:
        told = explained(fault, cli.model.micro_batch_tokens)
        if trainer.world_size > 1:
            return failed_together(told, Path(trainer.default_root_dir), trainer.global_rank)
        code = code_of(told)
        if code is None:
            raise
        print(f"stopped: {told}", file=sys.stderr)
        return code
    if run.__name__ == "predict":
        _print_rows([row for batch in result or () for row in batch])
    return 130 if trainer.interrupted else 0


def _print_rows(mine: list[dict[str, Any]]) -> None:
    """The rows of all processes in the order of the data, printed by the first one."""
    from lit_group_rl.functional.collectives import all_objects, rank

    shares: list[Any] = all_objects(mine)
    if rank() == 0:
        for row in sorted((row for share in shares for row in share), key=lambda row: row["position"]):
            print(json.dumps({k: v for k, v in row.items() if k != "position"}, ensure_ascii=False))


def quieten() -> None:
    """Hide what Lightning tells at each start and what means nothing here."""
    for pattern in (
        r".*LeafSpec.*",
        r".*does not have many workers.*",
        r".*torch\.jit\.script.*",
        r".*litlogger.*",
        r"Total length of `list`.*",
        r"Found \d+ module\(s\) in eval mode.*",
        r".*is_gradient_checkpointing.*",
    ):
        warnings.filterwarnings("ignore", pattern)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    hidden = ("litlogger", "litmodels", "`Trainer.fit` stopped", "GPU available", "TPU available", "HPU available")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(lambda record: not any(word in record.getMessage() for word in hidden))
