"""The README.md of an exported model: what it is, what was measured, how to load it; no more than the run tells."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import platform
import re
from pathlib import Path
from typing import Any

import yaml

from lit_group_rl import __version__
from lit_group_rl.cli import catalog, run_folder
from lit_group_rl.cli.compose import class_of, options_of
from lit_group_rl.cli.show import describe

FILE = "README.md"
HELDOUT = "eval/heldout/accuracy"
PACKAGE = "package:"
ALGORITHM = (
    "sampler", "filter", "rewards", "shapers", "advantage", "ratio", "clip_policy", "surrogate", "loss_weights",
    "aux_losses", "aggregator", "critic", "evaluator",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "lightning", "peft")


def write(run: Path, out: Path, step: int, which: str, adapter: bool) -> Path:
    """Write the card of the weights after RL step ``step`` beside them."""
    from lit_group_rl.callbacks.metrics_file import FILE as METRICS
    from lit_group_rl.callbacks.metrics_file import read_metrics

    config = yaml.safe_load((run / run_folder.CONFIG).read_text(encoding="utf-8"))
    metrics = read_metrics(run / METRICS)
    trained = run / "checkpoints" / f"step_{step:06d}"
    day = datetime.date.fromtimestamp((trained if trained.exists() else run).stat().st_mtime)
    path = out / FILE
    path.write_text(card(config, metrics, run, out.name, step, which, adapter, day), encoding="utf-8")
    return path


def card(
    config: dict[str, Any],
    metrics: dict[int, dict[str, float]],
    run: Path,
    title: str,
    step: int,
    which: str,
    adapter: bool,
    day: datetime.date,
) -> str:
    """The whole text."""
    policy = config["model"]["policy"]
    base, licence = base_model(policy)
    name = config.get("run_name") or run.parent.name
    front: dict[str, Any] = {"base_model": base.id} if base.id else {}
    front |= {"license": licence.id} if licence.id else {}
    front |= {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "lit-group-rl"],
    }
    known = catalog.files("recipes").get(name)
    recipe = f"`{name}`" + (f" ({catalog.header(known).rstrip('.')})" if known else "")
    kind = "A LoRA adapter for" if adapter else "A language model made from"
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False).rstrip()}\n---",
        f"# {title}",
        f"{kind} {base.text}, trained by group-relative reinforcement learning with lit-group-rl, recipe {recipe}.",
        "## What was measured",
        measured(config, metrics, step, which),
        "## Use",
        use(policy, config["data"]["source"], adapter, base),
        "## Training",
        training(config, metrics, step, day),
        "## Licence",
        f"{licence.text} The base model's licence and those of the training data apply to these weights too.",
        "## Versions",
        f"At export ({datetime.date.today().isoformat()}): {versions()}.",
        "## Configuration",
        "The file of the run; `lit-group-rl fit config.yaml` repeats it.",
        f"```yaml\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


class Said:
    """Words for a reader and, where there is one, the identifier that the hub knows."""

    def __init__(self, text: str, identifier: str = "") -> None:
        self.text, self.id = text, identifier


def base_model(policy: Any) -> tuple[Said, Said]:
    """What was trained and its licence, as far as they can be known from here."""
    unknown = "Unknown: the files of the base model state none."
    kind, options = class_of(policy).rsplit(".", 1)[-1], options_of(policy)
    path = str(options.get("path", ""))
    if kind == "TinyPolicy":
        text = f"the character-level model of under a million parameters inside lit-group-rl {__version__}"
        return Said(text), Said("Apache-2.0, that of lit-group-rl.", "apache-2.0")
    if kind == "CharPolicy":
        return Said("a small model with random weights"), Said("There is no base model.")
    if path.startswith(PACKAGE):
        module = path.removeprefix(PACKAGE)
        file = f" (`{options['gguf_file']}`)" if options.get("gguf_file") else ""
        return Said(f"the model in the Python package `{module}`{file}"), _licence_of_package(module)
    folder = Path(path).expanduser()
    if folder.is_dir():
        found = _front_matter(folder / FILE)
        stated = found.get("license")
        text = f"{stated}, as the model card of the base model says." if stated else unknown
        origin = f", itself made from {found['base_model']}" if found.get("base_model") else ""
        if not stated and any(folder.glob("LICENSE*")):
            text = "The base model came with a licence file: see there."
        return Said(f"the model in the folder `{folder.name}`{origin}"), Said(text, stated or "")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path):
        return Said(f"`{path}`", path), Said(f"That of the base model, see <https://huggingface.co/{path}>.")
    return Said(f"`{path or kind}`"), Said(unknown)


def _front_matter(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def _licence_of_package(module: str) -> Said:
    for distribution in importlib.metadata.packages_distributions().get(module, ()):
        data: dict[str, Any] = importlib.metadata.metadata(distribution).json
        classified = [c.rsplit(" :: ", 1)[-1] for c in data.get("classifier", ()) if c.startswith("License ::")]
        # the field license of old packages may hold the whole text
        stated = data.get("license_expression") or ", ".join(classified) or data.get("license", "").split("\n")[0]
        if stated:
            return Said(f"{stated}, as the Python package {distribution} says of itself.")
    return Said(f"Unknown: the Python package {module} states none.")


def measured(config: dict[str, Any], metrics: dict[int, dict[str, float]], step: int, which: str) -> str:
    """Held-out accuracy before and after, and how the checkpoint was chosen."""
    held = {s: row[HELDOUT] for s, row in sorted(metrics.items()) if HELDOUT in row}
    if not held or step not in held:
        return "Held-out accuracy was not measured at the exported step."
    size = config["data"].get("heldout_size")
    first = next(iter(held))
    rows = [f"| base model (RL step {first}) | {held[first]:.1%} |"] if first == 0 and step else []
    lines = [
        f"Accuracy on {f'up to {size} ' if size else ''}held-out prompts that were not trained on, greedy decoding:",
        "",
        "| weights | accuracy |",
        "| --- | ---: |",
        *rows,
        f"| these (RL step {step}) | {held[step]:.1%} |",
    ]
    best = which == "best" and len(held) > 1 and held[step] == max(held.values())
    chosen = f"These weights are the best of {len(held)} evaluations on the same prompts, which flatters them a little."
    lines += ["", *([chosen] if best else []), "One run with one seed. Nothing else was measured."]
    return "\n".join(lines)


def use(policy: Any, source: Any, adapter: bool, base: Said) -> str:
    """How to load it with transformers, and how prompts looked in the training."""
    options = options_of(policy)
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if adapter:
        gguf = f", gguf_file={options['gguf_file']!r}" if options.get("gguf_file") else ""
        lines += [] if base.id else [f"# BASE_MODEL: {base.text}"]
        lines += [
            f"base = AutoModelForCausalLM.from_pretrained({base.id or 'BASE_MODEL'!r}{gguf})",
            "folder = '.'  # this one",
        ]
        lines += ["model = PeftModel.from_pretrained(base, folder)"]
    else:
        lines += ["folder = '.'  # this one", "model = AutoModelForCausalLM.from_pretrained(folder)"]
    lines += ["tokenizer = AutoTokenizer.from_pretrained(folder)"]
    text = "```python\n" + "\n".join(lines) + "\n```"
    given = options_of(source)
    form = []
    if options.get("chat") or given.get("chat"):
        form.append("Prompts went through the tokenizer's chat template, as the message of a user.")
    if options.get("system_prompt"):
        form.append(f"System message: {options['system_prompt']!r}.")
    if given.get("instruction"):
        form.append(f"Behind every prompt, on a line of its own: {given['instruction']!r}.")
    return text + ("\n\n" + " ".join(form) if form else "")


def training(config: dict[str, Any], metrics: dict[int, dict[str, float]], step: int, day: datetime.date) -> str:
    """Data, budget and the parts of the algorithm."""
    model, data = config["model"], config["data"]
    group = options_of(model["sampler"]).get("group_size")
    rows = [
        ("date", day.isoformat()),
        ("data", f"`{describe(data['source'])}`"),
        ("RL steps", f"{step} of {config['steps']}"),
        ("completions", f"{_completions(metrics, step)} ({data['prompts_per_step']} prompts x {group} per RL step)"),
        ("learning rate", f"`{describe(model['learning_rate'])}`"),
        ("seed", str(config["seed"])),
    ]
    adapter = options_of(model["policy"]).get("lora")
    rows += [("LoRA", f"`{json.dumps(adapter)}`")] if adapter else []
    for slot in ALGORITHM:
        part = model.get(slot)
        several = isinstance(part, dict) and "class_path" not in part
        said = ", ".join(f"`{describe(p)}`" for p in part.values()) if several else f"`{describe(part)}`"
        rows += [(slot.replace("_", " "), said)] if part else []
    return "\n".join(["| | |", "| --- | --- |", *(f"| {k} | {v.replace('|', chr(92) + '|')} |" for k, v in rows)])


def _completions(metrics: dict[int, dict[str, float]], step: int) -> str:
    known = metrics.get(step, {}).get("progress/completions")
    return "not known" if known is None else f"{known:.0f}"


def versions() -> str:
    """Of the packages that the weights depend on."""
    found = [f"lit-group-rl {__version__}", f"Python {platform.python_version()}"]
    for package in PACKAGES:
        if importlib.util.find_spec(package):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)
