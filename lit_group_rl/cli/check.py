"""``check``: everything that can be known before a step is spent, in seconds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from lit_group_rl.cli.refusal import Refusal
from lit_group_rl.cli.run import prepare, quieten


class Report:
    """Prints a row per subject and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False

    def row(self, subject: str, verdict: str, text: str, *more: str) -> None:
        """One subject: 'ok', 'note' or 'FAILS', then what was found, in further lines the reason and the fix."""
        self.failed = self.failed or verdict == "FAILS"
        print(f" {subject:<11} {verdict:<5} {text}", flush=True)
        for line in more:
            print(f" {'':<11} {'':<5} {line}", flush=True)


def check(argv: Sequence[str]) -> int:
    """``check RECIPE [OVERLAY...] [options]``: 0 ready, 2 not."""
    if any(a in ("-h", "--help") for a in argv):
        from lit_group_rl.cli.show import help_of

        print(help_of("check") + "\n  --no-user-code refuses classes from outside the package")
        return 0
    user_code = "--no-user-code" not in argv
    config = prepare([a for a in argv if a != "--no-user-code"], user_code=user_code)
    quieten()
    from lit_group_rl.cli.lightning_cli import build

    cli = build(config)
    trainer = cli.make_trainer(None, [], [])
    report = Report()
    _sections(cli, trainer, report)
    command = "lit-group-rl fit " + " ".join(a for a in argv if a != "--no-user-code")
    print(" not ready." if report.failed else f" ready.      {command}")
    return Refusal.exit_code if report.failed else 0


def _sections(cli: Any, trainer: Any, report: Report) -> None:
    from lit_group_rl.cli import check_look, check_reward
    from lit_group_rl.parallel import FSDP2Strategy

    module, data, device = cli.model, cli.datamodule, trainer.strategy.root_device
    sharded = isinstance(trainer.strategy, FSDP2Strategy)
    shards = trainer.num_devices * trainer.num_nodes if sharded else 1
    steps: list[tuple[str, Callable[[], None]]] = [
        ("config", lambda: _config(module, data, report)),
        ("data", lambda: _data(module, data, report)),
        ("tokenizer", lambda: _tokenizer(module.policy, data, report)),
        ("reward", lambda: check_reward.check_rewards(module.rewards, data, report)),
        ("first look", lambda: check_look.first_look(module, data, device, report, shards)),
    ]
    for subject, step in steps:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step()
        except (ValueError, OSError) as error:  # RecipeError is one
            what, _, fix = str(error).partition(". ")
            report.row(subject, "FAILS", what, *([fix] if fix else []))
            if subject in ("data", "tokenizer"):
                return


def _config(module: Any, data: Any, report: Report) -> None:
    parts = []
    for slot, part in module.parts.items():
        if isinstance(part, dict):
            parts += [f"{slot} {', '.join(part)}"] if part else []
        elif part is not None and not isinstance(part, int | float):
            parts.append(f"{slot} {type(part).__name__}")
    problems = module.problems(data.prompts_per_step)
    errors = [p for p in problems if not p.warning]
    report.row("config", "FAILS" if errors else "ok", f"{len(parts)} parts", *_wrapped(parts))
    for problem in problems:
        report.row("", "FAILS" if not problem.warning else "note", f"{problem.field}: {problem.message}", problem.fix)


def _wrapped(parts: list[str], width: int = 96) -> list[str]:
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append("")
        lines[-1] += (" · " if lines[-1] else "") + part
    return lines


def _data(module: Any, data: Any, report: Report) -> None:
    from lit_group_rl.types import RecipeError

    data.setup()
    module.policy.load()
    data.fit_context(module.policy, module.sampler.longest)
    heldout_texts = {repr(p.text) for p in data.heldout}
    some = [data.train[i] for i in range(0, len(data.train), max(1, len(data.train) // 1000))]
    shared = sum(repr(p.text) in heldout_texts for p in some)
    lengths = [len(module.policy.encode(p)) for p in (*some, *data.heldout)]
    longest = max(lengths)
    room, context = module.sampler.longest, module.policy.context_length
    text = (
        f"{len(data.train)} train / {len(data.heldout)} held-out, "
        f"{f'{shared} SHARED' if shared else 'none shared'}, longest prompt {longest} + {room} new of {context} tokens"
    )
    if shared:
        raise RecipeError(f"{text}. Held-out accuracy would not be held out: remove the doubles")
    report.row("data", "ok", text)


def _tokenizer(policy: Any, data: Any, report: Report) -> None:
    from lit_group_rl.types import RecipeError

    sample = [*data.heldout[:256], *[data.train[i] for i in range(min(256, len(data.train)))]]
    broken, tried = [], 0
    for prompt in sample:
        texts = [(policy.encode_answer(prompt.answer), prompt.answer)] if prompt.answer is not None else []
        if isinstance(prompt.text, str) and not policy.tokenizer.chat_template:
            texts.append((policy.encode(prompt), prompt.text))
        for ids, text in texts:
            tried += 1
            back = policy.decode([ids])[0]
            if back.strip() != text.strip() and not back.endswith(text):
                broken.append((text, back, prompt.place))
    end = "eos and pad distinct" if policy.pad_id not in policy.eos_ids else "eos doubles as pad (masks go by position)"
    text = f"{len(policy.tokenizer)} tokens, round trip {tried - len(broken)}/{tried}, {end}"
    if broken:
        wanted, back, place = broken[0]
        raise RecipeError(
            f"{text}: {wanted[:40]!r} ({place or 'data'}) comes back as {back[:40]!r}. "
            "Use a policy whose tokenizer knows these characters, or other data"
        )
    report.row("tokenizer", "ok", text)


def seconds(value: float) -> str:
    """A duration as one would say it."""
    if value < 90:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def stopwatch() -> Callable[[], float]:
    """Seconds since this call."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began
