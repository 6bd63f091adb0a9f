"""``play``: ask a run, from the keyboard or a pipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lit_group_rl.cli.arguments import RUN_HELP, Arguments, find_run
from lit_group_rl.cli.refusal import Refusal, shown
from lit_group_rl.plain_text import safe


@dataclass(frozen=True)
class Answer:
    """A completion, with the probability that the policy gives it at temperature 1."""

    text: str
    logp: float
    tokens: list[tuple[str, float]]
    """Token and its probability, the end token too."""
    truncated: bool


def play(argv: Sequence[str]) -> int:
    """``play RUN [--prompt TEXT] [--temperature T] [--n N] [--tokens]``."""
    args = _arguments(argv)
    run = find_run("play", args.run)
    from lit_group_rl.cli.loading import load, refusing

    cli, checkpoint = load("play", run, args.checkpoint)
    policy, sampler, source = cli.model.policy, cli.model.sampler, cli.datamodule.source
    policy.net.to(_device())
    copies, temperature = args.n, args.temperature
    if temperature is None:
        usual = getattr(sampler, "temperature", 1.0)
        temperature = 0.0 if copies == 1 else usual if isinstance(usual, float) else 1.0
    instruction = "" if args.raw else getattr(source, "instruction", "")
    if args.prompt is None and sys.stdin.isatty():
        print(_banner(shown(run), checkpoint.state["rl_step"], policy, instruction), file=sys.stderr)
    for number, line in enumerate(_lines(args.prompt)):
        from lit_group_rl.data.columns import asked
        from lit_group_rl.types import Prompt

        prompt = Prompt(asked(line, instruction, getattr(source, "chat", False)), place="this prompt")
        for note in _unknown(policy, line):
            print(note, file=sys.stderr)
        with refusing():
            ids = policy.encode(prompt)
        room = policy.context_length - len(ids)
        if room < 1:
            print(f"too long: {len(ids)} tokens, the context has {policy.context_length}", file=sys.stderr)
            continue
        limit = min(args.max_new_tokens or sampler.max_new_tokens, room)
        answers = ask(policy, prompt, copies, temperature, limit, seed=args.seed, number=number)
        _write("\n".join(shown_answer(answer, args.tokens, limit) for answer in answers))
    return 0


def _arguments(argv: Sequence[str]) -> Any:
    parser = Arguments(
        "play",
        "Ask a run: each line is a prompt of its own, put as in the training (chat template, instruction).",
        "Ctrl-D ends.  p is the probability of the whole completion at temperature 1, its end included.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--prompt", metavar="TEXT", help="ask this and end; default: every line of the input")
    parser.add_argument("--temperature", type=float, metavar="T", help="default: 0, the likeliest; with --n the run's")
    parser.add_argument("--n", type=int, default=1, metavar="N", help="completions of each prompt")
    parser.add_argument("--tokens", action="store_true", help="show each token with its probability")
    parser.add_argument("--max_new_tokens", type=int, metavar="N", help="default: the run's")
    parser.add_argument("--raw", action="store_true", help="leave out the instruction that the data put behind prompts")
    parser.add_argument("--seed", type=int, default=1, help="of the draws")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best", help="default: best")
    args = parser.parse_args(argv)
    if args.temperature is not None and not 0 <= args.temperature < math.inf:
        raise Refusal("--temperature", f"must be at least 0, got {args.temperature}", "0 takes the likeliest tokens.")
    if args.temperature == 0 and args.n > 1:
        raise Refusal("--n", "completions at temperature 0 are all the same", "Give a temperature above 0.")
    for name in ("n", "max_new_tokens"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise Refusal(f"--{name}", f"must be at least 1, got {getattr(args, name)}", "Give 1 or more.")
    return args


def ask(
    policy: Any, prompt: Any, copies: int, temperature: float, limit: int, seed: int = 1, number: int = 0
) -> list[Answer]:
    """``copies`` completions of a prompt of at most ``limit`` tokens; temperature 0 takes the likeliest tokens."""
    import torch

    from lit_group_rl.functional.rng import seed_of
    from lit_group_rl.samplers.batch import build_batch

    ids = policy.encode(prompt)
    keys = [seed_of(seed, "play", number, member) for member in range(copies)]
    drawn = policy.generate([ids], copies=copies, keys=keys, max_new_tokens=limit, temperature=temperature)
    batch = build_batch(
        policy,
        prompts=[prompt] * copies,
        prompt_ids=[ids] * copies,
        completion_ids=drawn.ids,
        completion_mask=drawn.mask,
        truncated=drawn.truncated,
        behaviour_logp=drawn.logp,
        group_ids=torch.zeros(copies, dtype=torch.long),
        members=torch.arange(copies),
        temperature=1.0,
        exact_logp=False,
    )
    with torch.no_grad():
        logp = policy.score(batch).logp.double().tolist()
    answers = []
    for row, sample in enumerate(batch.samples):
        count = int(batch.lengths[row])
        tokens = policy.tokenizer.batch_decode([[i] for i in batch.completion_ids[row, :count].tolist()])
        each = logp[row][:count]
        pairs = [(text, math.exp(value)) for text, value in zip(tokens, each, strict=True)]
        answers.append(Answer(sample.completion, sum(each), pairs, sample.truncated))
    return answers


def shown_answer(answer: Answer, tokens: bool, limit: int) -> str:
    """'42   (p = 0.97)', with ``tokens`` a second line of tokens and their probabilities."""
    lines = [safe(line) for line in answer.text.split("\n")]
    facts = f"p = {probability(answer.logp)}"
    if len(answer.tokens) > 8:
        facts += f", {math.exp(answer.logp / len(answer.tokens)):.2f} a token"
    facts += f", cut at {limit} tokens" if answer.truncated else ""
    lines[-1] = f"{lines[-1] or '∅'}   ({facts})"
    if tokens:
        lines.append("  " + "  ".join(f"{safe(text)!r} {value:.2f}" for text, value in answer.tokens))
    return "\n".join(lines)


def probability(logp: float) -> str:
    """A probability of any size: '0.97', '1e-45'."""
    if logp >= math.log(0.01):
        return f"{math.exp(logp):.2f}"
    return f"{math.exp(logp):.0e}" if logp > -700 else f"1e{round(logp / math.log(10))}"


def _banner(run: str, step: int, policy: Any, instruction: str) -> str:
    chat = policy.chat if policy.chat is not None else bool(policy.tokenizer.chat_template)
    parts = [f"{run} after RL step {step}", "chat template on" if chat else "no chat template", "Ctrl-D ends"]
    return " · ".join(parts) + (f"\nbehind every prompt: {safe(instruction)}   (--raw: not)" if instruction else "")


def _lines(given: str | None) -> Iterator[str]:
    """The prompt that is given, or the lines of the input that are not blank."""
    if given is not None:
        yield given
        return
    if sys.stdin.isatty():
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - its import gives input() a history
        while True:
            try:
                line = input("> ")
            except EOFError:
                print()
                return
            if line.strip():
                yield line
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="replace")
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\r\n")


def _unknown(policy: Any, text: str) -> Iterator[str]:
    """A note on characters that the tokenizer turns into its mark for the unknown."""
    nothing = {policy.pad_id, policy.tokenizer.unk_token_id}
    lost = [c for c in dict.fromkeys(text) if _ids(policy, c) and set(_ids(policy, c)) <= nothing]
    if lost:
        yield f"note: this policy's tokenizer does not know {', '.join(repr(safe(c)) for c in lost)}"


def _ids(policy: Any, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False).input_ids)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
