"""What the coach knows: symptoms in the logged numbers, and what to try next.

A rule is a pure function of the history and of a few facts about the recipe.  It returns one line while its condition
holds and None while it does not.  Thresholds stand in ``RULES`` as words and in the functions as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from lit_group_rl.callbacks.coach_history import HELDOUT, LONG, VARIANCE, WINDOW, Facts, History, reward_is_flat, rises

LOG_RATIO = "policy/log_ratio_abs_max"


def never_right(history: History, facts: Facts) -> str | None:
    """R1."""
    solved, rewards = history.first("reward/accuracy", 5), history.first("reward/mean", 5)
    dead = history.first("group/zero_std_frac", 5)
    if len(solved) < 5 or history.total("reward/accuracy") or min(rewards) != max(rewards) or any(d < 1 for d in dead):
        return None
    return (
        f"no completion got more than {rewards[0]:.2g} since the start, so there is nothing to learn from. Try "
        f"{_easier(facts)}, weights from a supervised warm-up, or a second reward that pays part of the way"
    )


def too_hard(history: History, facts: Facts) -> str | None:
    """R2."""
    dead = _dead(history)
    if dead is None or dead[1] <= dead[2]:
        return None
    size = f"--model.sampler.group_size={2 * facts.group_size}" if facts.group_size else "a larger group"
    return f"{dead[0]:.0%} of the groups are dead, {dead[1]:.0%} all wrong: too hard. Try {_easier(facts)}, or {size}"


def too_easy(history: History, facts: Facts) -> str | None:
    """R3."""
    dead = _dead(history)
    if dead is None or dead[2] < dead[1]:
        return None
    harder = f"--data.source.level={facts.level + 1}" if facts.level is not None else "harder prompts"
    return f"{dead[0]:.0%} of the groups are dead, {dead[2]:.0%} all right: nearly done. Next: {harder}"


def cut_off(history: History, facts: Facts) -> str | None:
    """R4."""
    cut = history.recent("length/truncated_frac")
    if not cut or fmean(cut) <= 0.5:
        return None
    long = history.recent("length/p95", 1)
    reach = f" (95th percentile {long[0]:.0f} tokens)" if long else ""
    limit = facts.max_new_tokens
    to = f"from {limit}: --model.sampler.max_new_tokens={2 * limit}" if limit else "(model.sampler.max_new_tokens)"
    return f"{fmean(cut):.0%} of the answers are cut off before they end{reach}. Raise the limit {to}"


def parser_rejects(history: History, facts: Facts) -> str | None:
    """R5."""
    missed, solved = history.mean("reward/answer_missed_frac"), history.mean("reward/accuracy")
    if missed is None or solved is None or missed <= 0.5 or solved >= 0.5:
        return None
    options = ", ".join(f"--model.rewards.{path}=..." for path in facts.extracts) or "the reward"
    return (
        f"{missed:.0%} of the unsolved completions hold the right answer word for word, and {solved:.0%} are solved: "
        f"the reward does not find it. Read samples.jsonl, then set {options}"
    )


def hardly_moves(history: History, facts: Facts) -> str | None:
    """R6."""
    norms, solved = history.last("optim/grad_norm", LONG), history.mean("reward/accuracy")
    far = distance_to_start(history)
    if norms is None or not any(norms) or far is None or far >= 1e-4 or not reward_is_flat(history):
        return None
    if solved is not None and solved >= 0.9:  # nothing is left to move for
        return None
    note = " (LoRA needs about 10 times that of full training)" if facts.lora else ""
    return (
        f"reward flat for {LONG} steps and the policy has hardly moved (KL to the start {far:.1g} nats). "
        f"Raise the learning rate: {_rate(facts, 10.0)}{note}"
    )


def distance_to_start(history: History) -> float | None:
    """KL from the policy to its start, nats; None if nothing tells it.

    Without a reference an upper bound: with d a step's largest log-ratio, which is read before the last update and so
    is at least half of what the step moves a token, |log-ratio to the start| <= 2 sum(d), and KL is about its half
    square.
    """
    logged = history.last("policy/kl_ref")
    if logged is not None:
        return fmean(abs(v) for v in logged)
    return 2 * history.total(LOG_RATIO) ** 2 if history.first(LOG_RATIO) else None


def collapses(history: History, facts: Facts) -> str | None:
    """R7."""
    start, now = history.first("policy/entropy"), history.mean("policy/entropy")
    solved = history.mean("reward/accuracy")
    if not start or now is None or solved is None or now >= 0.1 * start[0] or solved >= 0.9:
        return None
    tries = [f"--model.clip_policy.high={facts.clip_high + 0.08:.2g}"] if facts.clip_high is not None else []
    tries += [f"--model.sampler.temperature={1.2 * facts.temperature:.2g}"] if facts.temperature else []
    tries += [] if facts.entropy_terms else ["--model.aux_losses.entropy=Entropy"]
    return (
        f"entropy fell from {start[0]:.2g} to {now:.2g} nats with {solved:.0%} solved: it stops exploring too early. "
        f"Try {_or(tries or ['more exploration'])}"
    )


def explodes(history: History, facts: Facts) -> str | None:
    """R8."""
    start, recent = history.first("policy/entropy"), history.last("policy/entropy")
    if not start or recent is None or fmean(recent) <= 1.5 * start[0]:
        return None
    if not rises(recent[: WINDOW // 2], recent[WINDOW // 2 :]):
        return None
    tries = [f"--model.aux_losses.{name}=null" for name in facts.entropy_terms] + [_rate(facts, 0.5)]
    return f"entropy rose from {start[0]:.2g} to {fmean(recent):.2g} nats and goes on. Try {_or(tries)}"


def drifts(history: History, facts: Facts) -> str | None:
    """R9."""
    start, now = history.first("length/mean"), history.mean("length/mean")
    if not start or now is None:
        return None
    what = ""
    if now < 0.25 * start[0]:
        what = f"length fell from {start[0]:.1f} to {now:.1f} tokens"
    elif now > 2 * start[0] and reward_is_flat(history):
        what = f"length grew from {start[0]:.1f} to {now:.1f} tokens while the reward is flat"
    if not what:
        return None
    tries = [] if facts.aggregator == "TokenMean" else ["--model.aggregator=TokenMean"]
    tries += ["--model.shapers.overlong=SoftOverlong"] if now > start[0] else ["a look at samples.jsonl"]
    return f"{what}. Try {_or(tries)}"


def steps_too_large(history: History, facts: Facts) -> str | None:
    """R10."""
    largest = max(history.recent(LOG_RATIO), default=0.0)
    clipped = 0.0 if facts.sequence_ratio else history.mean("policy/clip_frac") or 0.0
    if largest <= 5 and clipped <= 0.3:
        return None
    seen = [f"the log-ratio of a token reached {largest:.1f}"] if largest > 5 else []
    seen += [f"{clipped:.0%} of the tokens are clipped"] if clipped > 0.3 else []
    tries = ["--model.ppo_epochs=1 --model.minibatches=1"] if facts.updates > 1 else []
    return f"{' and '.join(seen)}: steps too large. Try {_or([*tries, _rate(facts, 0.5)])}"


def one_reward_drowns(history: History, facts: Facts) -> str | None:
    """R11."""
    means = {tag.removeprefix(VARIANCE): history.mean(tag) for tag in history.tags(VARIANCE)}
    known = {name: v for name, v in means.items() if v is not None}
    total = sum(known.values())
    if len(known) < 2 or total <= 0 or facts.advantage == "GDPO":  # which gives each its own scale
        return None
    name, most = max(known.items(), key=lambda item: item[1])
    if most <= 0.95 * total:
        return None
    weights = ", ".join(repr(n) for n in known if n != name)
    return (
        f"{most / total:.0%} of the variance inside groups comes from reward {name!r}, so {weights} cannot be heard. "
        f"Lower --model.rewards.{name}.weight, or give each its own scale with recipe gdpo"
    )


def overfits(history: History, facts: Facts) -> str | None:
    """R12."""
    held = history.points(HELDOUT)[-4:]
    if len(held) < 4 or any(later >= earlier for (_, earlier), (_, later) in pairwise(held)):
        return None
    span = held[3][0] - held[0][0]
    rewards = history.points("reward/mean")[-2 * span :]
    first = [v for s, v in rewards if held[0][0] < s <= held[1][0]]
    last = [v for s, v in rewards if held[2][0] < s <= held[3][0]]
    if not first or not last or not rises(first, last):
        return None
    tries = [f"a larger --model.aux_losses.{name}.coef" for name in facts.kl_terms] or ["--model.aux_losses.kl=KL"]
    return (
        f"held-out fell three times, {held[0][1]:.1%} to {held[3][1]:.1%}, while the reward rose from "
        f"{fmean(first):.2f} to {fmean(last):.2f}: overfitting, or the reward is cheated. Read samples.jsonl; "
        f"checkpoints/best is the better policy; try {_or([*tries, 'more prompts'])}"
    )


def scoring_is_slow(history: History, facts: Facts) -> str | None:
    """R13."""
    reward, step = history.mean("time/reward"), history.mean("time/step")
    if not reward or not step or reward <= 0.4 * step:
        return None
    more = [
        f"--model.rewards.{name}.{f'workers={2 * n}' if n else 'one_by_one=true if it compares no completions'}"
        for name, n in facts.workers.items()
    ]
    return f"scoring takes {reward:.2g} of {step:.2g} s per step. Make it faster: {_or(more or ['a quicker reward'])}"


def critic_is_wrong(history: History, facts: Facts) -> str | None:
    """R14."""
    explained = history.last("critic/explained_variance")
    if explained is None or max(explained) >= 0:
        return None
    return (
        f"the critic explains less than a constant would ({fmean(explained):.2f} of the variance). Try "
        "--model.update_schedule=CriticWarmUp, or a larger --model.critic.learning_rate"
    )


@dataclass(frozen=True)
class Rule:
    """One symptom."""

    id: str
    when: str
    """The condition, in words."""
    then: str
    """What is said, in words."""
    look: Callable[[History, Facts], str | None]


RULES: tuple[Rule, ...] = (
    Rule("R1", "in the first 5 steps nothing is solved and every completion has the same total, and nothing is solved "
         "since", "it never gets it right: easier prompts, a warm start, partial credit", never_right),
    Rule("R2", "more than 80 % of the groups without spread, more of them all wrong than all right",
         "too hard: an easier level, a larger group", too_hard),
    Rule("R3", "more than 80 % of the groups without spread, most of them all right", "nearly done: a harder level",
         too_easy),
    Rule("R4", "more than 50 % of the completions cut off; from the first step on", "answers are cut: raise the limit",
         cut_off),
    Rule("R5", "less than 50 % solved, and of the unsolved more than 50 % hold the answer of the data word for word",
         "the reward does not find right answers: look at samples.jsonl, change where it looks", parser_rejects),
    Rule("R6", "gradients, but the reward is flat for 50 steps and the KL to the start below 1e-4 (without a "
         "reference: its upper bound from the log-ratios); silent from 90 % solved on",
         "the policy hardly moves: ten times the learning rate", hardly_moves),
    Rule("R7", "entropy below 10 % of its first value with less than 90 % solved",
         "it collapses early: clip higher, more temperature, an entropy term", collapses),
    Rule("R8", "entropy above 150 % of its first value and rising within the window",
         "it explodes: no entropy bonus, half the learning rate", explodes),
    Rule("R9", "mean length twice the first while the reward is flat for 50 steps, or below 25 % of the first",
         "length drifts: token-level averaging, an overlong penalty", drifts),
    Rule("R10", "a log-ratio above 5 within the window, or more than 30 % of the tokens clipped (not where a "
         "completion has one ratio: its narrow clip does that by design)",
         "steps too large: fewer updates per rollout, half the learning rate", steps_too_large),
    Rule("R11", "two or more weighted rewards, more than 95 % of the variance inside groups from one of them",
         "one reward drowns the others: set weights, or normalise each", one_reward_drowns),
    Rule("R12", "held-out accuracy falls at 3 evaluations in a row while the reward rises",
         "overfitting or a cheated reward: samples, a KL term, the best checkpoint", overfits),
    Rule("R13", "more than 40 % of the step's time in scoring", "the reward is the bottleneck: more workers",
         scoring_is_slow),
    Rule("R14", "explained variance of the critic below 0 in all of 20 steps",
         "the critic is worse than a constant: pretrain it, raise its learning rate", critic_is_wrong),
)  # fmt: skip


def markdown() -> str:
    """The rules as a table."""
    lines = ["| rule | speaks when | says |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {r.id} | {r.when} | {r.then} |" for r in RULES)]) + "\n"


def _dead(history: History) -> tuple[float, float, float] | None:
    """Shares of groups without spread, all wrong, all right; None where that is not most of them, or by design."""
    sizes = history.last("group/size")
    tags = ("group/zero_std_frac", "group/all_min_frac", "group/all_max_frac")
    shares = [history.mean(tag) for tag in tags]
    if sizes is None or min(sizes) <= 1 or None in shares:  # a group of one has no spread
        return None
    dead, wrong, right = (float(s) for s in shares if s is not None)
    return (dead, wrong, right) if dead > 0.8 else None


def _easier(facts: Facts) -> str:
    if facts.level is not None and facts.level > 1:
        return f"--data.source.level={facts.level - 1}"
    return "easier prompts"


def _rate(facts: Facts, factor: float) -> str:
    if facts.learning_rate is None:
        return f"{factor:g} times model.learning_rate"
    return f"--model.learning_rate={factor * facts.learning_rate:.2g}"


def _or(tries: Iterable[str]) -> str:
    *most, last = tries
    return f"{', '.join(most)} or {last}" if most else last


if __name__ == "__main__":
    print(markdown(), end="")
