"""What every logged number means: one table, the source of docs/metrics.md and of TensorBoard's first page.

Capitals in a name stand for a part that differs between recipes: ``reward_part/NAME``, ``eval/SET/pass_at_K``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Tag:
    """One metric or one family of metrics."""

    name: str
    """As logged; NAME, STAGE, SET and K (a number) stand for a part that differs between recipes."""
    definition: str
    """One sentence."""
    unit: str
    """'share' lies in [0, 1]; '' is a plain number."""


TABLE: tuple[Tag, ...] = tuple(
    Tag(*row)
    for row in (
        ("reward/mean", "Weighted total of the rewards before any shaping, mean over scored completions.", "reward"),
        ("reward/group_std", "Standard deviation of the total within a group, mean over groups.", "reward"),
        ("reward/accuracy", "Completions whose first reward reached its 'solved' threshold.", "share"),
        ("reward/pass_at_g", "Groups with at least one solved completion.", "share"),
        ("reward/abstain_frac", "Completions that no weighted reward could score; they are not trained on.", "share"),
        ("reward/error_frac", "Reward calls that raised an exception; each counts as an abstention.", "share"),
        ("reward/timeout_frac", "Reward calls that ran past their time limit; each counts as an abstention.", "share"),
        (
            "reward/answer_missed_frac",
            "Completions in whose text the right answer stands word for word, of those that are not solved.",
            "share",
        ),
        ("reward_part/NAME", "Mean of one reward, not weighted, abstentions left out.", "reward"),
        (
            "reward_variance/NAME",
            "Variance inside groups of one reward times its weight, mean over completions; only with several rewards.",
            "",
        ),
        ("group/size", "Completions drawn per prompt, mean over groups.", "completions"),
        ("group/zero_std_frac", "Dead groups: all members have the same total, so they teach nothing.", "share"),
        ("group/all_min_frac", "Groups in which every member has the lowest total of the step: too hard.", "share"),
        ("group/all_max_frac", "Groups in which every member has the highest total of the step: too easy.", "share"),
        ("group/used_frac", "Groups that entered the update, of all groups sampled.", "share"),
        ("group/distinct_frac", "Different completions in a group, of its members, mean over groups.", "share"),
        ("advantage/mean", "Mean advantage over trained tokens.", ""),
        ("advantage/std", "Standard deviation of the advantage over trained tokens.", ""),
        ("advantage/abs_max", "Largest absolute advantage of a trained token.", ""),
        ("length/mean", "Completion length, the end token included.", "tokens"),
        ("length/p95", "95th percentile of the completion length, over all processes together.", "tokens"),
        ("length/max", "Longest completion of the step.", "tokens"),
        (
            "length/correct",
            "Mean length of solved completions; compare with length/wrong to see a length bias.",
            "tokens",
        ),
        ("length/wrong", "Mean length of completions that are not solved.", "tokens"),
        ("length/truncated_frac", "Completions that reached the length limit without an end token.", "share"),
        ("length/empty_frac", "Completions with no token, or the end token only.", "share"),
        ("episode/turns", "Turns of the policy in a completion; only with an environment.", "turns"),
        ("episode/reply_tokens", "Tokens of a completion that the environment wrote.", "tokens"),
        ("mismatch/kl", "Mean of the sampler's minus the trainer's log-probability over trained tokens (k1).", "nats"),
        ("mismatch/abs_mean", "Mean absolute difference of the two; logged where they are computed apart.", "nats"),
        ("mismatch/abs_max", "Largest absolute difference of the two for a trained token.", "nats"),
        ("mismatch/weight_mean", "Weight that RolloutIS gives, mean over trained tokens with an advantage.", ""),
        ("mismatch/dropped_frac", "Trained tokens with an advantage to which RolloutIS gives the weight 0.", "share"),
        (
            "policy/entropy",
            "Entropy of the next-token distribution at the sampling temperature, mean per token.",
            "nats",
        ),
        ("policy/kl_ref", "Mean of old minus reference log-probability over trained tokens (k1 estimate).", "nats"),
        ("policy/kl_old", "Mean of old minus new log-probability over trained tokens (k1 estimate).", "nats"),
        (
            "policy/log_ratio_abs_max",
            "Largest absolute log importance ratio of a trained token; above 5 the steps are too large.",
            "nats",
        ),
        ("policy/ratio_mean", "Importance ratio new over old, mean over trained tokens; exactly 1 on-policy.", "ratio"),
        (
            "policy/clip_frac",
            "Trained tokens whose gradient the clip removes, by the sign of the advantage; 0 with one update a step.",
            "share",
        ),
        ("policy/clip_low_frac", "As policy/clip_frac, at the lower bound (negative advantage).", "share"),
        ("policy/clip_high_frac", "As policy/clip_frac, at the upper bound (positive advantage).", "share"),
        (
            "loss/policy",
            "Value of the policy objective; near 0 is normal with centred advantages and says nothing about learning.",
            "",
        ),
        ("loss/total", "Sum of all losses of the update; near 0 is normal, see loss/policy.", ""),
        ("loss/kl", "Divergence from the reference as an auxiliary loss, before its coefficient.", "nats"),
        ("loss/entropy", "Entropy as an auxiliary loss, before its coefficient.", "nats"),
        ("loss/NAME", "Another auxiliary loss before its coefficient, or the loss of the critic or evaluator.", ""),
        ("optim/grad_norm", "Norm of the policy's gradient before clipping, mean over the step's updates.", ""),
        ("optim/grad_norm_critic", "Norm of the critic's gradient before clipping.", ""),
        ("optim/grad_norm_evaluator", "Norm of the evaluator's gradient before clipping.", ""),
        (
            "optim/update_to_weight",
            "Norm of the weight change of the step over the norm of the weights; of a tensor with more than 131,072 "
            "weights a part of them is taken for all.",
            "ratio",
        ),
        ("optim/lr", "Learning rate of the policy.", ""),
        ("optim/skipped_total", "Updates skipped since the start because loss or gradient was not finite.", "updates"),
        ("critic/loss", "Loss of the critic before its coefficient.", ""),
        (
            "critic/explained_variance",
            "1 - Var(return - value) / Var(return): 1 is perfect, below 0 is worse than a constant.",
            "",
        ),
        ("critic/value_mean", "Mean predicted return over trained tokens.", "reward"),
        ("critic/return_mean", "Mean target of the critic over trained tokens.", "reward"),
        ("critic/clip_frac", "Trained tokens whose value update is clipped.", "share"),
        ("evaluator/loss", "Loss of the evaluator on its replay buffer.", ""),
        ("evaluator/accuracy", "Completions that the evaluator judges as the reward does.", "share"),
        ("evaluator/staleness", "Age of the examples the evaluator learns from.", "RL steps"),
        ("evaluator/buffer_total", "Examples in the evaluator's replay buffer.", "completions"),
        ("schedule/NAME", "Value that an option given as a schedule had in this RL step.", ""),
        ("time/step", "One RL step without held-out evaluation.", "seconds"),
        ("time/sample", "Drawing the completions of one RL step.", "seconds"),
        ("time/reward", "Scoring them.", "seconds"),
        ("time/train", "Forward, backward and optimizer steps.", "seconds"),
        ("time/eval", "Held-out evaluation, in the steps that have one.", "seconds"),
        ("time/STAGE", "Another stage of the RL step.", "seconds"),
        ("perf/tokens_per_s", "Completion tokens sampled and trained on per second of the whole step.", "1/s"),
        ("perf/samples_per_s", "Completions per second of the whole step.", "1/s"),
        ("perf/peak_mem_gb", "Largest memory allocated on the device since the start.", "GB"),
        ("progress/prompts", "Prompts used since the start.", "prompts"),
        ("progress/completions", "Completions sampled since the start: compare runs on this axis.", "completions"),
        ("progress/tokens", "Completion tokens sampled since the start.", "tokens"),
        ("progress/updates", "Optimizer steps since the start.", "updates"),
        ("eval/SET/accuracy", "Held-out prompts solved by the greedy completion.", "share"),
        ("eval/SET/mean_at_K", "Held-out prompts solved, mean over K sampled completions of each.", "share"),
        ("eval/SET/pass_at_K", "Chance that one or more of K sampled completions solve a held-out prompt.", "share"),
        ("eval/SET/maj_at_K", "Held-out prompts solved by the most frequent of K sampled completions.", "share"),
        ("eval/SET/reward", "Weighted total of the greedy completions, mean over held-out prompts.", "reward"),
        ("eval/SET/length", "Mean length of the greedy completions, the end token included.", "tokens"),
        ("eval/SET/truncated_frac", "Greedy completions that reached the length limit.", "share"),
    )
)

FIRST_PAGE: dict[str, dict[str, str]] = {
    "1 Is it learning?": {
        "reward": "reward/mean",
        "solved, training prompts (sampled)": "reward/accuracy",
        "solved, held-out prompts (greedy)": "eval/heldout/accuracy",
        "held-out, mean of K samples": "eval/heldout/mean_at_K",
        "held-out, any of K samples": "eval/heldout/pass_at_K",
    },
    "2 Is there signal?": {
        "dead groups (all members equal)": "group/zero_std_frac",
        "groups all wrong: too hard": "group/all_min_frac",
        "groups all right: too easy": "group/all_max_frac",
        "groups used for the update": "group/used_frac",
        "reward spread within a group": "reward/group_std",
    },
    "3 Is it stable?": {
        "entropy (nats per token)": "policy/entropy",
        "KL to the reference (nats)": "policy/kl_ref",
        "clipped at the low bound": "policy/clip_low_frac",
        "clipped at the high bound": "policy/clip_high_frac",
        "gradient norm before clipping": "optim/grad_norm",
        "largest log importance ratio": "policy/log_ratio_abs_max",
        "critic: explained variance": "critic/explained_variance",
    },
    "4 How long are the answers?": {
        "tokens, mean": "length/mean",
        "tokens, 95th percentile": "length/p95",
        "cut off at the limit": "length/truncated_frac",
        "tokens when solved": "length/correct",
        "tokens when not solved": "length/wrong",
    },
    "5 How fast is it?": {
        "seconds per RL step": "time/step",
        "seconds to sample": "time/sample",
        "seconds to score": "time/reward",
        "seconds to train": "time/train",
        "completions per second": "perf/samples_per_s",
    },
}
"""Section -> title of a chart -> its tag.  One tag a chart, since TensorBoard gives a colour to a run, not to a tag."""

SHARES_BY_OTHER_NAMES = frozenset({"accuracy", "pass_at_g", "pass_at_K", "mean_at_K", "maj_at_K"})
"""Quantities whose usual name is kept although they are shares."""

_PART = r"[a-z0-9][a-z0-9_.\-]*"
_SHAPE = re.compile(rf"[a-z][a-z0-9_]*/{_PART}")
_SET_SHAPE = re.compile(rf"eval/{_PART}/{_PART}")


@cache
def _pattern(name: str) -> re.Pattern[str]:
    # a placeholder takes no slash: time/STAGE must not swallow what has a level more
    return re.compile(re.sub(r"[A-Z]+", lambda m: r"\d+" if m[0] == "K" else r"[^/]+", re.escape(name)))


@cache
def definition(tag: str) -> Tag | None:
    """The entry of a logged tag, exact names before families; None if it has none."""
    exact = next((t for t in TABLE if t.name == tag), None)
    return exact or next((t for t in TABLE if _pattern(t.name).fullmatch(tag)), None)


def largest_k(name: str, logged: set[str]) -> str | None:
    """The tag in ``logged`` that ``name`` means, the one with the largest K if it has one; None if there is none."""
    found = [tag for tag in logged if _pattern(name).fullmatch(tag)]
    return max(found, key=lambda tag: int(tag.rpartition("_")[2]) if name.endswith("_K") else 0, default=None)


def check_name(tag: str) -> list[str]:
    """Every naming rule that ``tag`` breaks, as sentences; empty if it is well named."""
    broken = []
    if not (_SET_SHAPE if tag.startswith("eval/") else _SHAPE).fullmatch(tag):
        broken.append(f"{tag}: write group/quantity in lower case with one slash; only eval/SET/quantity has two")
    quantity = tag.rpartition("/")[2]
    if re.search(r"(^|_)(share|fraction|rate|pct|percent)($|_)", quantity):
        broken.append(f"{tag}: a share ends in _frac and lies in [0, 1]")
    if re.search(r"(^|_)(count|num|counter)($|_)", quantity):
        broken.append(f"{tag}: a count ends in _total")
    if tag.startswith("time/") and re.search(r"_(s|sec|secs|seconds|ms|time)$", quantity):
        broken.append(f"{tag}: under time/ everything is seconds, so the unit is not part of the name")
    return broken


INTRODUCTION = """# Metrics

Every number a run logs, to TensorBoard and to `metrics.csv`, once per RL step; the axis is the number of finished RL
steps. Generated by `python -m lit_group_rl.tags > docs/metrics.md`.

Names are `group/quantity[_statistic]`. A share lies in [0, 1] and ends in `_frac`, a count since the start ends in
`_total`, times are seconds. Capitals stand for a part that differs between recipes. *Page* says in which section of
TensorBoard's Custom Scalars page the number is drawn.
"""


def markdown() -> str:
    """The definitions as a table per group."""
    shown = {tag: section for section, charts in FIRST_PAGE.items() for tag in charts.values()}
    lines = []
    group = ""
    for tag in TABLE:
        if tag.name.partition("/")[0] != group:
            group = tag.name.partition("/")[0]
            lines += ["", f"## {group}", "", "| tag | meaning | unit | page |", "|---|---|---|---|"]
        page = shown.get(tag.name.replace("/SET/", "/heldout/"), "")
        lines.append(f"| `{tag.name}` | {tag.definition} | {tag.unit} | {page} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(INTRODUCTION + markdown(), end="")
