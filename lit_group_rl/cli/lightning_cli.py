"""LightningCLI on LitGroupRL and PromptData, fed with a merged recipe."""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import Composed
from lit_group_rl.cli.errors import building, building_trainer, parser_refusal
from lit_group_rl.cli.run_folder import masked
from lit_group_rl.cli.user_code import make_importable
from lit_group_rl.data import PromptData
from lit_group_rl.module import LitGroupRL
from lit_group_rl.types import Component

ALWAYS = {"max_epochs": 1, "enable_model_summary": False, "num_sanity_val_steps": 0, "use_distributed_sampler": False}
"""Trainer options that this module decides: one Lightning epoch is the whole run."""


class RecipeCLI(LightningCLI):
    """Parses and builds; the commands run the trainer themselves."""

    def __init__(self, config: Composed, build: bool = True) -> None:
        """``build`` False stops after parsing."""
        self.composed, self.build = config, build
        self.extra_loggers: list[Any] = []
        self.extra_callbacks: list[Any] = []
        self.trainer_options: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            merged = Path(folder) / "merged.yaml"
            merged.write_text(yaml.safe_dump(config.values, sort_keys=False, allow_unicode=True), encoding="utf-8")
            super().__init__(
                LitGroupRL,
                PromptData,
                args=[f"--config={merged}", *config.rest],
                run=False,
                parser_class=_parser_for(config),
                parser_kwargs={"allow_abbrev": False},
                save_config_callback=None,
                auto_configure_optimizers=False,
                seed_everything_default=False,
                load_from_checkpoint_support=False,
            )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The options of a run, in place of Lightning's seed_everything."""
        parser.add_argument("--steps", type=PositiveInt, default=100, help="RL steps of the run")
        parser.add_argument("--seed", type=NonNegativeInt, default=1, help="every random draw derives from it")
        parser.add_argument("--resume", type=str | None, default=None, help="a run folder, its number, or 'auto'")
        help_changes = "resume although parts of the recipe are not those of the run"
        parser.add_argument("--allow_changes", type=bool, default=False, help=help_changes)
        parser.add_argument("--run_root", type=str, default="runs", help="folder of all runs")
        parser.add_argument("--run_name", type=str | None, default=None, help="default: the recipe's name")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One number, one place."""
        parser.link_arguments("steps", "model.steps")
        parser.link_arguments("seed", "model.seed")
        parser.link_arguments("seed", "data.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Without Lightning's warning that sys.argv is not what is parsed."""
        self.config = parser.parse_args(args)

    def _set_seed(self) -> None:
        """The module seeds each draw by its purpose."""

    def instantiate_classes(self) -> None:
        """Build data and module; the trainer is made once the run folder is known."""
        if not self.build:
            return
        with building(self.composed, self.config):
            self.config_init = self.parser.instantiate_classes(self.config)
        self.datamodule, self.model = self.config_init["data"], self.config_init["model"]

    def make_trainer(self, folder: Path | None, loggers: list[Any], callbacks: list[Any]) -> Trainer:
        """The trainer with the user's loggers and callbacks; ours join where the user named none of their class."""
        options = {**self.config_init["trainer"], **ALWAYS}
        given = options["callbacks"] or []
        given = list(given) if isinstance(given, list) else [given]
        options["callbacks"] = [*given, *(c for c in callbacks if not any(isinstance(g, type(c)) for g in given))]
        if options["logger"] in (None, True):
            options["logger"] = loggers
        if folder is not None:
            options["default_root_dir"] = str(folder)
        else:
            options["enable_progress_bar"] = False
        options["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in options["callbacks"])
        options["log_every_n_steps"] = 1
        with building_trainer():
            return Trainer(**options)

    def resolved_yaml(self) -> str:
        """The whole configuration in the order of a recipe, secrets masked, trainer options only where they are set."""
        values = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        defaults = {name: p.default for name, p in inspect.signature(Trainer).parameters.items()}
        values["trainer"] = {
            k: v for k, v in values["trainer"].items() if v is not None and not (k in defaults and v == defaults[k])
        }
        order = ["steps", "seed", "run_root", "run_name", "model", "data", "trainer"]
        return yaml.safe_dump({k: masked(values[k]) for k in order}, sort_keys=False, allow_unicode=True)


def parse(config: Composed) -> RecipeCLI:
    """Types and values checked, nothing built."""
    make_importable(config)
    import_components()
    return RecipeCLI(config, build=False)


def build(config: Composed) -> RecipeCLI:
    """Parsed, and data and module built."""
    make_importable(config)
    import_components()
    return RecipeCLI(config)


def import_components() -> None:
    """Import every slot, so that bare class names resolve."""
    for slot in catalog.slots():
        for name in catalog.names(slot):
            entry = catalog.entry(name)
            if entry:
                importlib.import_module(entry.module)
    importlib.import_module("lit_group_rl.callbacks")
    _evaluate_annotations(Component)


def _evaluate_annotations(base: type) -> None:
    """Postponed annotations of all classes below ``base`` as types.

    jsonargparse reads a class's options, those of its bases too, with the names of that class's own module; where a
    base uses others it gives up and takes any value.
    """
    if base.__module__ not in sys.modules:  # unloaded: its classes live on for a while
        return
    names = vars(sys.modules[base.__module__])
    for name, annotation in list(vars(base).get("__annotations__", {}).items()):
        if isinstance(annotation, str):
            base.__annotations__[name] = eval(annotation, dict(names), dict(vars(base)))
    child: type
    for child in base.__subclasses__():
        _evaluate_annotations(child)


def _parser_for(config: Composed) -> type[LightningArgumentParser]:
    class Parser(LightningArgumentParser):
        """Refuses in one line."""

        def error(self, message: str, ex: Exception | None = None) -> Any:
            if not self.exit_on_error:  # an inner parser: the outer one adds its context
                return super().error(message, ex)
            raise parser_refusal(message, config)

    return Parser
