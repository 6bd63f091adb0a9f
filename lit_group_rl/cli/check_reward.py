"""The reward part of ``check``: right answers must score at the top and junk must not, before a policy finds out."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Prompt, RecipeError, Sample

Scores = dict[str, list[float | None]]
"""Per reward, None = abstained."""
PROMPTS = 64
FORMS = ("{}", "<answer>{}</answer>", "#### {}", "\\boxed{{{}}}", "<think>because</think><answer>{}</answer>")
"""How a right answer may have to be written; the first that scores best is taken."""


def check_rewards(rewards: Mapping[str, Reward], data: Any, report: Any) -> None:
    """Probe the rewards with the data's own answers and with junk; raises RecipeError where junk would be learned."""
    prompts = [p for p in (data.heldout or data.train)[:PROMPTS] if p.answer is not None]
    probed = {n: r for n, r in rewards.items() if type(r).score_batch is Reward.score_batch}
    main = next(iter(rewards))
    if not prompts or main not in probed:
        why = "the data holds no answers" if not prompts else f"{main} compares whole groups"
        report.row("reward", "note", f"{why}: gold and junk cannot be compared")
        return
    timings: list[float] = []
    form, gold = _best_form(probed, main, prompts, timings)
    _refuse_unsolved(rewards[main], main, gold[main], prompts)
    weights = {n: Clock(0, 1).at(r.weight) for n, r in probed.items()}
    top = _mean(_total(gold, weights))
    worst, kind = _worst_junk(probed, main, weights, top, prompts, timings)
    notes = []
    if _scores(probed, _answers(prompts, form), timings) != gold:
        notes.append("the same completion scored twice gives two scores: a resumed run will not be identical")
    if len(probed) < len(rewards):
        notes.append(f"not probed: {', '.join(n for n in rewards if n not in probed)} (need whole groups)")
    timings.sort()
    p50, p99 = timings[len(timings) // 2], timings[min(len(timings) - 1, int(len(timings) * 0.99))]
    written = "" if form == "{}" else f" written as {form.format('...')}"
    text = (
        f"gold {top:.2f}{written} · junk at most {worst:.2f} ({kind}) · p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms"
    )
    report.row("reward", "ok", text, *notes)


def _refuse_unsolved(reward: Reward, name: str, scores: Sequence[float | None], prompts: Sequence[Prompt]) -> None:
    wrong = [i for i, s in enumerate(scores) if s is None or s < reward.solved_at]
    if len(wrong) > 0.05 * len(scores):
        at = wrong[0]
        raise RecipeError(
            f"model.rewards.{name}: {len(wrong)} of {len(scores)} right answers of the data do not count as solved, "
            f"for example {prompts[at].answer!r} for {str(prompts[at].text)[:60]!r} scores {scores[at]}. "
            "Mend the reward, its extract or solved_at option, or the answers; or put a reward first that tells right "
            "from wrong, with weight 0 if it is only to measure"
        )


def _worst_junk(
    probed: Mapping[str, Reward],
    main: str,
    weights: Mapping[str, float],
    top: float,
    prompts: Sequence[Prompt],
    timings: list[float],
) -> tuple[float, str]:
    """(mean score, kind) of the junk that scores highest; where junk happens to be the answer the row is left out.

    Junk may be right by chance, once in ten times or as often as the commonest answer is, give or take two deviations
    of so few rows: of the sums of two digits one in ten is its own last number.
    """
    worst, worst_kind = -math.inf, "none"
    chance = max(0.1, Counter(str(p.answer).strip() for p in prompts).most_common(1)[0][1] / len(prompts))
    for kind, texts in _junk(prompts).items():
        rows = [i for i, text in enumerate(texts) if text.strip() != str(prompts[i].answer).strip()]
        if not rows:
            continue
        scored = _scores(probed, [_sample(prompts[i], texts[i]) for i in rows], timings)
        level = _mean(_total(scored, weights))
        wrong = statistics.fmean(s is not None and s >= probed[main].solved_at for s in scored[main])
        if level >= top or wrong > chance + 2 * math.sqrt(chance * (1 - chance) / len(rows)):
            raise RecipeError(
                f"right answers average {top:.2f}, and {kind} {level:.2f} ({wrong:.0%} counts as solved): a policy "
                "would learn that. Mend the reward, or combine it with one that tells them apart"
            )
        if level > worst:
            worst, worst_kind = level, kind
    return worst, worst_kind


def _best_form(
    probed: Mapping[str, Reward], main: str, prompts: Sequence[Prompt], timings: list[float]
) -> tuple[str, Scores]:
    best: Any = None
    for form in FORMS:
        scored = _scores(probed, _answers(prompts, form), timings)
        level = _mean(scored[main])
        if best is None or level > best[0]:
            best = (level, form, scored)
        if statistics.fmean(s is not None and s >= probed[main].solved_at for s in scored[main]) == 1.0:
            break
    return best[1], best[2]


def _answers(prompts: Sequence[Prompt], form: str) -> list[Sample]:
    return [_sample(p, form.format(p.answer)) for p in prompts]


def _junk(prompts: Sequence[Prompt]) -> dict[str, list[str]]:
    texts = [p.text if isinstance(p.text, str) else str(p.text[-1].get("content", "")) for p in prompts]
    answers = [str(p.answer) for p in prompts]
    return {
        "an empty answer": ["" for _ in prompts],
        "a space": [" " for _ in prompts],
        "'0'": ["0" for _ in prompts],
        "'nan'": ["nan" for _ in prompts],
        "'inf'": ["inf" for _ in prompts],
        "all digits": ["0 1 2 3 4 5 6 7 8 9" for _ in prompts],
        "one digit repeated": ["7" * 40 for _ in prompts],
        "the prompt": texts,
        "another row's answer": [answers[i - 1] for i in range(len(answers))],
    }


def _sample(prompt: Prompt, text: str) -> Sample:
    return Sample(prompt.text, text, prompt.answer, prompt.fields, max(1, len(text)), False)


def _scores(probed: Mapping[str, Reward], samples: list[Sample], timings: list[float]) -> Scores:
    scores: Scores = {}
    for name, reward in probed.items():
        began = time.perf_counter()
        try:
            result = list(reward.score(samples))
            failures = [s for s in result if isinstance(s, Exception)]
            if failures and len(failures) == len(result):
                raise failures[0]
        except Exception as error:  # a user's function may raise anything
            raise RecipeError(
                f"model.rewards.{name}: raised {type(error).__name__}: {error}. "
                "Mend it; in a run these rows would abstain"
            ) from error
        timings.append((time.perf_counter() - began) / len(samples))
        if len(result) != len(samples):
            raise RecipeError(f"model.rewards.{name}: gave {len(result)} scores for {len(samples)} rows. Give one each")
        scores[name] = [None if s is None or isinstance(s, Exception) or s != s else float(s) for s in result]
    return scores


def _total(scores: Mapping[str, list[float | None]], weights: Mapping[str, float]) -> list[float | None]:
    rows = zip(*scores.values(), strict=True)
    return [sum(w * s for w, s in zip(weights.values(), row, strict=True) if s is not None and w) for row in rows]


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else -math.inf
