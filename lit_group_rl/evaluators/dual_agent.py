"""The evaluator of the dual-agent recipe: judges completions, and learns to while the policy changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_group_rl.critics.backbone import body_of, causal_of
from lit_group_rl.evaluators.base import Evaluator
from lit_group_rl.evaluators.examples import (
    Example,
    ReplayBuffer,
    Row,
    adversarial_examples,
    outcome_examples,
    preference_examples,
    reference_rows,
    row_keys,
    token_rows,
)
from lit_group_rl.evaluators.judges import (
    PooledScorer,
    ScalarJudge,
    TokenJudge,
    critiques_of,
    left_padded,
    packed,
    pooled_states,
)
from lit_group_rl.functional.collectives import all_max, all_objects, all_sum
from lit_group_rl.functional.ema import ema_weights
from lit_group_rl.functional.rng import uniforms
from lit_group_rl.schedules.base import Clock, Number, require, require_number
from lit_group_rl.types import POLICY, LossContext, Problem, Recipe, RecipeError, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


class DualAgent(Evaluator):
    """A second transformer reads prompt and completion and judges them; the reward EvaluatorScore pays what it says.

        verdict s = l_yes - l_no (or a scalar head);  soft reward sigmoid(s) or s;  loss = BCE(s, label)

    The rewards of the recipe stay the anchor: the first of them labels completions (its weight may be 0), and their
    weights mix verifier and evaluator.  Nothing flows from the evaluator into the policy but a number.

    Each fresh labelled completion brings old ones from a replay buffer, drawn with probability 2^(-age / half_life).
    Scoring uses a moving average of the weights, moved once per RL step in which the evaluator learned.

    Source: an interview note, which calls it DAPO; no publication of that description was found.  A published
    relative: RL Tango, arXiv:2505.15034.
    """

    def __init__(
        self,
        verdict: Literal["tokens", "scalar", "critique"] = "tokens",
        labels: Literal["outcome", "adversarial", "preference"] = "outcome",
        label_rate: float = 1.0,
        reward: Literal["prob", "log_odds"] = "prob",
        path: str | None = None,
        question: str = "",
        yes: str = "yes",
        no: str = "no",
        critique_tokens: int = 64,
        fresh: float = 0.5,
        capacity: int = 4096,
        half_life: float = 8.0,
        max_staleness: int = 32,
        ema: float = 0.9,
        label_smoothing: float = 0.1,
        max_accuracy: float = 0.9,
        learning_rate: Number = 1e-4,
    ) -> None:
        """Made when the policy is loaded.

        Args:
            verdict: 'tokens' reads the logits of ``yes`` and ``no``; 'scalar' has a head of its own; 'critique' lets a
                frozen copy write a critique, and trains a small scorer that reads it.
            labels: 'outcome' is the first reward's verdict; 'adversarial' 1 for reference answers and 0 for what the
                policy wrote; 'preference' compares a right with a wrong completion of the same prompt.
            label_rate: Share of the completions whose outcome the evaluator may see.
            reward: 'prob' pays the probability of yes, 'log_odds' its log-odds.
            path: Folder with weights and the policy's tokenizer; null copies the policy.
            question: Text put behind the completion, before the verdict or the critique.
            yes: Verdict token, one token.
            no: The other one.
            critique_tokens: Longest critique.
            fresh: Share of fresh examples in what it learns from; 1 = no replay.
            capacity: Examples in the replay buffer.
            half_life: RL steps after which an example is drawn half as often.
            max_staleness: An example older than this many RL steps is not drawn.
            ema: Decay of the averaged weights that score; 0 scores with the present ones.
            label_smoothing: Labels are this much nearer to 1/2 (0.1: 0.95 and 0.05), so that verdicts stay graded.
            max_accuracy: Above this accuracy on fresh labels, the mean of that on right and that on wrong ones, it does
                not learn, lest all scores end at 0; 1 = always.
            learning_rate: Of its own parameters.
        """
        super().__init__()
        self.verdict, self.labels, self.label_rate, self.reward, self.path = verdict, labels, label_rate, reward, path
        self.question, self.yes, self.no, self.critique_tokens = question, yes, no, critique_tokens
        self.fresh, self.ema, self.label_smoothing, self.max_accuracy = fresh, ema, label_smoothing, max_accuracy
        self.learning_rate = learning_rate
        require_number(self, "label_rate", low=0.0, high=1.0)
        require(0 < fresh <= 1, self, "fresh", "must lie in (0, 1]")
        require(0 <= ema < 1, self, "ema", "must lie in [0, 1)")
        require(0 <= label_smoothing < 1, self, "label_smoothing", "must lie in [0, 1)")
        require_number(self, "max_accuracy", low=0.0, high=1.0)
        require_number(self, "learning_rate", low=0.0)
        require(critique_tokens >= 1, self, "critique_tokens", "must be at least 1")
        self.replay = ReplayBuffer(capacity, half_life, max_staleness)
        self.live: nn.Module | None = None
        self.average: nn.Module | None = None
        self.writer: Any = None
        self.moved: Tensor
        self.register_buffer("moved", torch.tensor(False))
        self._rows: dict[int, Row] = {}
        self._references: dict[int, Row] = {}
        self._scores: dict[Row, float] = {}
        self._assigned: dict[int, list[Example]] = {}
        self._per_row = 0.0
        self._idle = False

    def build(self, policy: HFPolicy) -> None:
        if self.verdict == "tokens":
            yes, no = self._token(policy, "yes"), self._token(policy, "no")
            self.live = TokenJudge(causal_of(policy, self.path, "model.evaluator.path"), yes, no)
        elif self.verdict == "scalar":
            self.live = ScalarJudge(body_of(policy, self.path, "model.evaluator.path"))
        else:
            self.writer = causal_of(policy, self.path, "model.evaluator.path").requires_grad_(False).eval()
            self.live = PooledScorer(self.writer.config.hidden_size)
        if self.ema > 0:
            self.average = copy.deepcopy(self.live).requires_grad_(False)

    def _token(self, policy: Any, name: str) -> int:
        ids = policy.tokenizer(getattr(self, name), add_special_tokens=False).input_ids
        if len(ids) != 1:
            raise RecipeError(
                f"model.evaluator.{name}: {getattr(self, name)!r} is {len(ids)} tokens of the policy's tokenizer, and "
                "a verdict is read from one. Choose a word that is one token, or verdict 'scalar'"
            )
        return int(ids[0])

    def forward(self, ids: Tensor, mask: Tensor, averaged: bool = False) -> Tensor:
        """Log-odds of 'right' per row, of the averaged weights if asked.  [n, W] left-padded -> [n]."""
        judge = self.average if averaged and self.average is not None else self.live
        assert judge is not None
        if self.writer is not None:
            return judge(pooled_states(self.writer.base_model, ids, mask))
        return judge(ids, mask)

    # ---- after sampling

    @torch.no_grad()
    def annotate(self, batch: RolloutBatch, policy: HFPolicy) -> None:
        if bool(self.moved) and self.average is not None:
            assert self.live is not None
            ema_weights(self.average, self.live, self.ema)
            self.moved.fill_(False)
        question = policy.tokenizer(self.question, add_special_tokens=False).input_ids if self.question else []
        rows = token_rows(batch, question, policy.context_length)
        references: dict[int, Row] = {}
        if self.labels == "adversarial":
            references = reference_rows(batch, policy.encode_answer, question, policy.context_length)
        distinct = list(dict.fromkeys([*rows, *references.values()]))
        if self.writer is not None:
            said = critiques_of(self.writer, distinct, policy, self.critique_tokens)
            critiques = dict(zip(distinct, said, strict=True))
            rows = [critiques[row] for row in rows]
            references = {group: critiques[row] for group, row in references.items()}
            distinct = list(critiques.values())
        self._rows.update(zip(batch.row_ids.tolist(), rows, strict=True))
        self._references.update(references)
        scores = self._judge(distinct, batch.mask.device)
        self._scores.update(zip(distinct, scores.tolist(), strict=True))
        odds = torch.tensor([self._scores[row] for row in rows], dtype=torch.float64, device=batch.mask.device)
        batch.features["evaluator"] = odds.sigmoid() if self.reward == "prob" else odds
        batch.metrics.mean("evaluator/buffer_total", len(self.replay))

    def _judge(self, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Log-odds of all rows, few at a time, equally often on every process.  -> [n] float64 on the CPU."""
        out = torch.zeros(len(rows), dtype=torch.float64)
        packs = packed([len(row) for row in rows], self.micro_batch_tokens)
        most = int(all_max(torch.tensor(len(packs), device=device)))
        for pack in [*packs, *([[]] * (most - len(packs)))]:
            odds = self(*left_padded([rows[i] for i in pack] or [(0,)], device), averaged=True)
            if pack:
                out[pack] = odds.double().cpu()
        return out

    # ---- once the scores are known

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        """Label the fresh completions, give each its share of old ones, and put the fresh ones into the buffer."""
        ids, step = batch.row_ids.tolist(), clock.step
        labelled = zip(ids, self._fresh(batch, step), strict=True)
        fresh = [(row, k, example) for row, found in labelled for k, example in enumerate(found)]
        keys = row_keys("evaluator replay", batch.seed, step, [row for row, _, _ in fresh])
        keys = [key + k for key, (_, k, _) in zip(keys, fresh, strict=True)]
        self._assigned = {row: [] for row in ids}
        for (row, _, example), old in zip(fresh, self.replay.companions(keys, self.fresh, step), strict=True):
            self._assigned[row] += [example, *old]
        self._measure([example for _, _, example in fresh], batch)
        everyone = sorted(item for part in all_objects(fresh) for item in part)  # type: ignore[attr-defined]
        self.replay.push(example for _, _, example in everyone)
        self._rows, self._references, self._scores = {}, {}, {}

    def _measure(self, fresh: Sequence[Example], batch: RolloutBatch) -> None:
        """How many examples a row has on average, and whether the fresh ones are judged well enough already."""
        good = [self._judged(e) for e in fresh if e.label > 0.5]
        bad = [self._judged(e) for e in fresh if e.label <= 0.5]
        mine = [sum(map(len, self._assigned.values())), int(batch.mask.any(1).sum())]
        mine += [sum(good), len(good), sum(bad), len(bad)]
        examples, rows, *counts = all_sum(torch.tensor(mine, device=batch.mask.device)).tolist()
        self._per_row = examples / max(rows, 1)
        # a constant verdict is often right when one label is rare, so both labels count half
        sides = [right / of for right, of in (counts[:2], counts[2:]) if of]
        complete = len(sides) == (1 if self.labels == "preference" else 2)
        self._idle = examples == 0 or (complete and sum(sides) / len(sides) > self.max_accuracy)
        batch.metrics.mean("evaluator/accuracy", sum(good) + sum(bad), len(fresh))

    def _judged(self, example: Example) -> bool:
        """Whether the scores of this rollout agree with the label."""
        odds = self._scores[example.first] - (self._scores[example.second] if example.second else 0.0)
        return odds > 0 if example.label > 0.5 else odds < 0

    def _fresh(self, batch: RolloutBatch, step: int) -> list[list[Example]]:
        ids, groups = batch.row_ids.tolist(), batch.group_ids.tolist()
        rows = [self._rows[row] for row in ids]
        if self.labels == "adversarial":
            examples = adversarial_examples(rows, [self._references.get(g) for g in groups], step)
        else:
            assert batch.solved is not None
            verdict = next(iter(batch.rewards.values()))
            seen = uniforms(row_keys("evaluator label", batch.seed, step, ids), 0, 1)[:, 0] < self.label_rate
            used = (seen & ~verdict.isnan().cpu()).tolist()
            right = batch.solved.tolist()
            if self.labels == "outcome":
                examples = outcome_examples(rows, right, used, step)
            else:
                pairs = row_keys("evaluator pair", batch.seed, step, ids)
                examples = preference_examples(rows, right, used, groups, pairs, step)
        usable = batch.mask.any(1) & (batch.row_role == POLICY)
        return [e if ok else [] for e, ok in zip(examples, usable.tolist(), strict=True)]

    # ---- update

    def loss(self, ctx: LossContext, policy: HFPolicy) -> Tensor:
        device = ctx.mask.device
        if self._idle:  # a loss that reaches no parameter: not even the optimizer's momentum moves it
            return torch.zeros((), device=device, requires_grad=True)
        trained = ctx.batch.row_ids[ctx.mask.any(1)].tolist()
        examples = [e for row in trained for e in self._assigned.get(row, [])]
        rows = list(dict.fromkeys(r for e in examples for r in (e.first, e.second) if r)) or [(0,)]
        place = {row: i for i, row in enumerate(rows)}
        odds = self(*left_padded(rows, device))
        if not examples:
            return 0.0 * odds.sum()
        first = odds[[place[e.first] for e in examples]]
        second = torch.stack([odds[place[e.second]] if e.second else odds.new_zeros(()) for e in examples])
        labels = torch.tensor([e.label for e in examples], device=device)
        smooth = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        each = binary_cross_entropy_with_logits(first - second, smooth, reduction="none")
        ctx.metrics.mean("evaluator/loss", each.detach().sum(), len(examples))
        ctx.metrics.mean("evaluator/staleness", sum(ctx.clock.step - e.step for e in examples), len(examples))
        return each.sum() / (self._per_row * max(ctx.counts.rows, 1.0))

    def after_step(self) -> None:
        if not self._idle:
            self.moved.fill_(True)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        rewards = recipe.parts.get("rewards") or {}
        if self.labels != "adversarial" and self.label_rate == 0:
            yield Problem(
                "model.evaluator.label_rate",
                f"0 leaves '{self.labels}' nothing to learn from, and any constant verdict would do",
                "Raise it, or use labels 'adversarial', which need reference answers only",
            )
        if not recipe.needs("evaluator"):
            yield Problem(
                "model.rewards",
                "the evaluator is trained, but no reward pays what it says",
                "Add EvaluatorScore to model.rewards, or set model.evaluator to null",
                warning=True,
            )
        if self.labels != "adversarial" and rewards and "evaluator" in next(iter(rewards.values())).needs:
            yield Problem(
                "model.rewards",
                "the first reward labels completions for the evaluator, and here it is the evaluator's own score",
                "Put a verifier first (its weight may be 0)",
            )
        if self.labels == "preference" and recipe.group_size < 2:
            yield Problem(
                "model.sampler.group_size",
                "labels 'preference' compare completions of one prompt and need at least 2, got 1",
                "Raise group_size, or use labels 'outcome'",
            )
