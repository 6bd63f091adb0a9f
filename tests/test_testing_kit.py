"""The contract kit passes every component that is shipped, and each of its cases fails one that is broken."""

import dataclasses
import importlib
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_group_rl import testing
from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.advantages.group_relative import GroupRelative
from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.cli import catalog
from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.functional.groups import group_center, group_is_tied, group_mean
from lit_group_rl.functional.masked import masked_mean, masked_sum
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.ratios.token import TokenRatio
from lit_group_rl.rewards.base import Reward, RewardShaper
from lit_group_rl.schedules.base import Schedule
from lit_group_rl.schedules.linear import Linear
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.testing import ContractError, cases, losses, rewards, rollout, schedules, surrogate, trust_region
from lit_group_rl.types import Advantages, Bounds

CHECKS = {
    "advantage": (testing.check_advantage, rollout.ADVANTAGE),
    "filter": (testing.check_filter, rollout.FILTER),
    "shapers": (testing.check_shaper, rollout.SHAPER),
    "schedule": (testing.check_schedule, schedules.SCHEDULE),
    "ratio": (testing.check_ratio, trust_region.RATIO),
    "clip_policy": (testing.check_clip_policy, trust_region.CLIP),
    "surrogate": (testing.check_surrogate, surrogate.SURROGATE),
    "loss_weights": (testing.check_loss_weight, losses.WEIGHT),
    "aux_losses": (testing.check_aux_loss, losses.AUX),
    "aggregator": (testing.check_aggregator, losses.AGGREGATOR),
    "rewards": (testing.check_reward, rewards.REWARD),
}
OPTIONS: dict[str, Any] = {
    "BetweenGroup": {"base": GroupRelative(), "quality": "quality"},
    "GDPO": {"weights": {"exact": 1.0, "quality": 1.0}},
    "NoisyAdvantage": {"base": GroupRelative()},
    "PassAtK": {"k": 2},
    "WinsorisedAdvantage": {"base": GroupRelative()},
    "NoisyRatio": {"base": TokenRatio()},
    "Quadratic": {"delta": 0.15},
    "FixedLength": {"length": 8},
    "GroupWeight": {"quality": "quality"},
    "GroupSupervised": {"quality": "quality"},
    "Format": {"pattern": ".*"},
    "Length": {"longest": 5},
    "Follows": {"template": "{prompt}"},
    "AdaptiveEntropy": {"target": 0.5},
    "AdaptiveKL": {"start": 0.1, "target": 0.01},
    "Constant": {"constant": 1.0},
    "Cosine": {"start": 1.0, "end": 0.0},
    "Exponential": {"start": 1.0, "end": 0.1},
    "Linear": {"start": 1.0, "end": 0.0},
    "RaiseWhenSlow": {"start": 0.1},
    "WarmUp": {"target": Linear(1.0, 0.0), "steps": 5},
}
"""Options of the classes that cannot be made without any."""
KNOWN: dict[str, Any] = {
    "SequenceTokenRatio": {"detached": True},
    "GammaWeight": {"detached": True},
    "ImportanceWeighted": {"detached": True},
    "GroupClassification": {"policy_gradient": False},
    "ExpertNLL": {"detached": True},
}
"""What a component does otherwise on purpose, and its paper says."""
ELSEWHERE = {
    "CodeExecution": "runs programs, and only where a recipe names a backend",
    "FunctionReward": "is a function of the user's: check_reward takes the function",
    "GroupEmbedding": "loads a model",
    "RewardModel": "loads a model",
    "ReasoningGymReward": "needs the entry of a task in every row",
    "MathVerify": "starts a process for the library of an extra, which need not be installed",
}
MORE = [
    ("advantage", "GroupRelative", {"divide_by": "centered_batch_std"}),
    ("advantage", "GAE", {"whiten": True, "length_alpha": 0.05, "critic_lam": 1.0}),
    ("advantage", "LightCriticBaseline", {"shrinkage": True, "whiten": True}),
    ("clip_policy", "Divergence", {"kind": "kl"}),
    ("clip_policy", "DynamicQuantileClip", {"decay": 0.9}),
    ("loss_weights", "RolloutIS", {"level": "sequence", "mode": "mask", "low": 0.5, "cap": 5.0}),
    ("aux_losses", "KL", {"estimator": "k1", "ratio_weighted": True}),
]
SHIPPED = [
    (slot, name, OPTIONS.get(name, {})) for slot in CHECKS for name in catalog.names(slot) if name not in ELSEWHERE
]


@pytest.mark.parametrize(("slot", "name", "options"), [*SHIPPED, *MORE])
def test_what_is_shipped_keeps_its_contract(slot, name, options):
    make = getattr(importlib.import_module(catalog.entry(name).module), name)
    CHECKS[slot][0](make(**options), **KNOWN.get(name, {}))


def test_the_exceptions_are_still_needed():
    assert set(KNOWN) | set(ELSEWHERE) <= {n for slot in CHECKS for n in catalog.names(slot)}
    for name, options in KNOWN.items():
        slot = next(s for s in CHECKS if name in catalog.names(s))
        make = getattr(importlib.import_module(catalog.entry(name).module), name)
        assert options
        with pytest.raises(ContractError):
            CHECKS[slot][0](make(**OPTIONS.get(name, {})))


# ---- broken components: each by a function in place of its method


@dataclass
class Adv(AdvantageEstimator):
    how: Any
    needs_group: bool = True
    steps: int = 0

    def estimate(self, batch):
        self.steps += 1
        return Advantages(self.how(batch, self))


@dataclass
class Keep(GroupFilter):
    how: Any

    def keep(self, batch):
        return self.how(batch)


@dataclass
class Shaper(RewardShaper):
    how: Any

    def shape(self, batch, clock):
        return self.how(batch)


@dataclass
class Moves(Schedule):
    how: Any = lambda clock, self: 1.0
    look: Any = lambda metrics, self: None
    seen: float = 0.0

    def value(self, clock):
        return self.how(clock, self)

    def observe(self, metrics):
        self.look(metrics, self)


@dataclass
class Ratio(ImportanceRatio):
    how: Any

    def log_ratio(self, token_log_ratio, mask):
        return self.how(token_log_ratio, mask)


@dataclass
class Clip(ClipPolicy):
    how: Any = lambda ctx, self: Bounds()
    first: Any = lambda moved, advantages, mask: moved
    look: Any = lambda batch, self: None
    seen: float = 0.0

    def bounds(self, ctx):
        return self.how(ctx, self)

    def pre(self, token_log_ratio, advantages, mask):
        return self.first(token_log_ratio, advantages, mask)

    def prepare(self, batch, clock):
        self.look(batch, self)


@dataclass
class Loss(Surrogate):
    how: Any
    uses_bounds: bool = False
    zero_without_advantage: bool = False
    whole_groups: bool = False

    def loss(self, ctx, bounds):
        return self.how(ctx, bounds)


@dataclass
class Weight(LossWeight):
    how: Any

    def weight(self, ctx):
        return self.how(ctx)


@dataclass
class Term(AuxLoss):
    how: Any
    coef: float = 1.0
    chosen: Any = lambda batch: batch.mask

    def term(self, ctx):
        return self.how(ctx)

    def selection(self, batch):
        return self.chosen(batch)


@dataclass
class Total(LossAggregator):
    how: Any

    def reduce(self, values, mask, counts):
        return self.how(values, mask, counts)


@dataclass
class Scores(Reward):
    how: Any
    range: Any = None

    def score(self, samples):
        return self.how(samples)


def centred(batch):
    return per_token(group_center(batch.totals.nan_to_num(), batch.group_ids, batch.counted), batch)


def reads_padding(batch, self):
    return per_token(centred(batch)[:, 0] * batch.values.sum(1), batch)


def changes_scores(batch, self):
    out = centred(batch)
    batch.scores += 1
    return out


def counts_abstentions(batch, self):
    scores = batch.totals.nan_to_num()
    return per_token(torch.where(batch.counted, scores - group_mean(scores, batch.group_ids), 0.0), batch)


def by_position(batch, self):
    blocks = batch.totals.nan_to_num().view(-1, 3)
    return per_token((blocks - blocks.mean(1, keepdim=True)).view(-1), batch)


def by_number(batch, self):
    return centred(batch) * (1 + batch.group_ids[:, None])


def raw_z(batch, self):
    scores = batch.totals
    out = torch.zeros_like(scores)
    for g in batch.group_ids.unique():
        rows = (batch.group_ids == g) & batch.counted
        out[rows] = (scores[rows] - scores[rows].mean()) / scores[rows].std()
    return per_token(out, batch)


def late(batch, self):
    return centred(batch) * self.steps


def noted(batch, self):
    self.seen = float(batch.scores.nan_to_num().sum())


def observed(metrics, self):
    self.seen += metrics.get("reward/mean", 0.0)


def counting(clock, self):
    self.seen += 1
    return self.seen


def tied(batch):
    return group_is_tied(batch.scores.nan_to_num(), batch.group_ids, batch.counted)


def neg(ctx):
    return -ctx.advantages * ctx.ratio


def changes_mask(batch):
    batch.mask[:] = False
    return ~tied(batch)


def adds_scores(batch):
    batch.scores += 1
    return torch.zeros(len(batch), dtype=torch.float64)


def changes_texts(samples):
    samples.reverse()
    return [0.0] * len(samples)


def one(ctx):
    return ctx.logp.new_tensor(1.0)


BROKEN = {
    "advantage": {
        "shape": Adv(lambda b, s: centred(b)[:, 0]),
        "device": Adv(lambda b, s: centred(b) + torch.zeros(b.mask.shape, dtype=torch.float64)),
        "no gradient": Adv(lambda b, s: centred(b) * b.values),
        "equal scores": Adv(raw_z),
        "off the mask": Adv(lambda b, s: centred(b) + 1.0),
        "abstention": Adv(counts_abstentions),
        "order of rows": Adv(by_position),
        "names of groups": Adv(by_number),
        "masked positions": Adv(reads_padding),
        "input left alone": Adv(changes_scores),
        "memory": Adv(late),
    },
    "filter": {
        "shape": Keep(lambda b: (~tied(b)).double()),
        "whole groups": Keep(lambda b: b.scores > 0),
        "device": Keep(lambda b: ~tied(b) & torch.ones(len(b), dtype=torch.bool)),
        "order of rows": Keep(lambda b: b.group_ids == b.group_ids[0]),
        "abstention": Keep(lambda b: ~group_is_tied(b.scores.nan_to_num(), b.group_ids)),
        "input left alone": Keep(changes_mask),
    },
    "shapers": {
        "shape": Shaper(lambda b: b.lengths),
        "order of rows": Shaper(lambda b: torch.arange(len(b)).double()),
        "masked positions": Shaper(lambda b: b.old_logp.sum(1)),
        "input left alone": Shaper(adds_scores),
    },
    "schedule": {
        "finite": Moves(lambda clock, self: 1 / (100 - clock.step) if clock.step != 100 else float("inf")),
        "repeatable": Moves(counting),
        "missing numbers": Moves(look=lambda metrics, self: metrics["reward/mean"]),
        "memory": Moves(lambda clock, self: self.seen, observed),
    },
    "ratio": {
        "shape": Ratio(lambda x, m: masked_mean(x, m, dim=1)),
        "no move": Ratio(lambda x, m: x + 1),
        "own row": Ratio(lambda x, m: x + x.mean(0)),
        "masked positions": Ratio(lambda x, m: x.mean(1, keepdim=True).expand(x.shape)),
        "gradient": Ratio(lambda x, m: x.detach()),
        "finite differences": Ratio(lambda x, m: x + x.detach()),
        "device": Ratio(lambda x, m: x + torch.zeros(x.shape, dtype=x.dtype)),
    },
    "clip_policy": {
        "shape": Clip(lambda ctx, s: Bounds(high=torch.full((len(ctx.batch),), 1.2))),
        "around 1": Clip(lambda ctx, s: Bounds(high=ctx.logp.new_tensor(0.2))),
        "no gradient": Clip(lambda ctx, s: Bounds(high=1.2 + ctx.ratio)),
        "before the ratio": Clip(first=lambda x, a, m: x.clamp(0.1, 0.4)),
        "order of rows": Clip(lambda ctx, s: Bounds(high=1 + torch.arange(len(ctx.batch))[:, None].double())),
        "micro-batches": Clip(lambda ctx, s: Bounds(high=1 + ctx.batch.scores.nan_to_num().mean())),
        "masked positions": Clip(lambda ctx, s: Bounds(high=1 + ctx.batch.entropy.sum(1, keepdim=True).exp())),
        "memory": Clip(lambda ctx, s: Bounds(high=ctx.logp.new_tensor(1 + s.seen)), look=lambda b, s: mixed(b, s)),
        "device": Clip(lambda ctx, s: Bounds(high=torch.full(ctx.logp.shape, 1.2))),
    },
    "surrogate": {
        "shape": Loss(lambda ctx, b: neg(ctx).sum(1)),
        "gradient": Loss(lambda ctx, b: neg(ctx).detach() + 0 * ctx.logp),
        "finite differences": Loss(lambda ctx, b: -ctx.ratio.detach() * ctx.advantages * ctx.logp),
        "first update": Loss(lambda ctx, b: -neg(ctx)),
        "extremes": Loss(lambda ctx, b: -ctx.advantages * ctx.log_ratio.exp()),
        "no advantage": Loss(lambda ctx, b: neg(ctx) + 0.1 * ctx.log_ratio**2, zero_without_advantage=True),
        "bounds": Loss(lambda ctx, b: neg(ctx), uses_bounds=True),
        "masked positions": Loss(lambda ctx, b: neg(ctx) * ctx.logp.mean(1, keepdim=True).exp()),
        "order of rows": Loss(lambda ctx, b: neg(ctx) * torch.arange(len(ctx.batch))[:, None]),
        "micro-batches": Loss(lambda ctx, b: neg(ctx) / ctx.mask.sum()),
        "device": Loss(lambda ctx, b: neg(ctx) + torch.zeros(ctx.logp.shape)),
    },
    "loss_weights": {
        "shape": Weight(lambda ctx: ctx.advantages),
        "no gradient": Weight(lambda ctx: ctx.ratio),
        "order of rows": Weight(lambda ctx: torch.arange(len(ctx.batch))[:, None].double()),
        "micro-batches": Weight(lambda ctx: 1 / ctx.mask.sum().double()),
        "masked positions": Weight(lambda ctx: ctx.batch.old_logp.mean(1, keepdim=True).exp()),
    },
    "aux_losses": {
        "shape": Term(lambda ctx: -ctx.logp, chosen=lambda b: b.mask.double()),
        "gradient": Term(lambda ctx: -ctx.logp.detach()),
        "finite differences": Term(lambda ctx: -ctx.logp * ctx.logp.detach()),
        "order of rows": Term(lambda ctx: ctx.logp * torch.arange(len(ctx.batch))[:, None]),
        "micro-batches": Term(lambda ctx: ctx.logp / ctx.mask.sum()),
        "masked positions": Term(lambda ctx: ctx.logp * ctx.batch.ref_logp.mean(1, keepdim=True)),
    },
    "aggregator": {
        "shape": Total(lambda x, m, c: masked_sum(x, m, dim=1)),
        "empty mask": Total(lambda x, m, c: masked_sum(x, m) / c.tokens if c.tokens else x.new_tensor(float("nan"))),
        "micro-batches": Total(lambda x, m, c: masked_mean(x, m)),
        "masked positions": Total(lambda x, m, c: (x * m).sum() / max(c.tokens, 1)),
        "finite differences": Total(lambda x, m, c: masked_sum(x + x.detach(), m)),
        "linear": Total(lambda x, m, c: masked_sum(x**2, m)),
        "order of rows": Total(lambda x, m, c: masked_sum(x * torch.arange(len(x))[:, None], m)),
    },
    "rewards": {
        "shape": Scores(lambda samples: [0.0]),
        "odd texts": Scores(lambda samples: [float(s.completion or "0") for s in samples]),
        "no answer": Scores(lambda samples: [float(s.answer.strip() == s.completion) for s in samples]),
        "chat prompts": Scores(lambda samples: [float(s.prompt.startswith("2")) for s in samples]),
        "range": Scores(lambda samples: [2.0] * len(samples), range=(0.0, 1.0)),
        "order of rows": Scores(lambda samples: [float(i) for i, _ in enumerate(samples)]),
        "own row": Scores(lambda samples: [float(len(samples))] * len(samples)),
        "repeatable": Scores(lambda samples: [random.random() for _ in samples]),
        "input left alone": Scores(changes_texts),
    },
}


def mixed(batch, self):
    self.seen = 0.5 * self.seen + float(batch.scores.nan_to_num().sum())


def failed(slot, component, **options):
    with pytest.raises(ContractError) as error:
        CHECKS[slot][0](component, **options)
    lines = str(error.value).splitlines()
    return {line.partition(": ")[0].strip(): line for line in lines[1:]}


@pytest.mark.parametrize(("slot", "case"), [(slot, case) for slot, broken in BROKEN.items() for case in broken])
def test_a_broken_component_fails_its_case_with_what_was_seen_and_a_fix(slot, case):
    line = failed(slot, BROKEN[slot][case]).get(case)
    assert line is not None
    seen, _, fix = line.partition(". Fix: ")
    assert len(seen) > len(case) + 4
    assert fix


def test_every_case_is_failed_by_something():
    own = {"right and wrong"}  # needs examples: below
    for slot, (_, defined) in CHECKS.items():
        assert {c.name for c in defined} - own == set(BROKEN[slot]), slot


def test_right_and_wrong_answers_of_a_reward():
    def says_four(completions):
        return [float("4" in text) for text in completions]

    testing.check_reward(says_four, right=[("4", "4")], wrong=[("5", "4")])
    assert (
        "'14' is wrong for '4' and scores 1.0" in failed("rewards", says_four, wrong=[("14", "4")])["right and wrong"]
    )
    assert "'four' is right" in failed("rewards", says_four, right=[("four", "4")])["right and wrong"]


def test_functions_get_what_a_run_gives_them():
    def near(completions, answers, level):
        return [None if a is None else float(len(c) <= n) for c, a, n in zip(completions, answers, level, strict=True)]

    testing.check_reward(near, fields={"level": 3})
    assert "asks for 'level'" in failed("rewards", near)["shape"]


def test_a_case_can_be_left_out_by_name_only():
    testing.check_aggregator(BROKEN["aggregator"]["linear"], skip=["linear", "masked positions"])
    with pytest.raises(ValueError, match="no case is named 'linea'; they are shape, empty mask"):
        testing.check_aggregator(BROKEN["aggregator"]["linear"], skip=["linea"])


def test_an_exception_of_the_component_names_its_line():
    line = failed("advantage", Adv(lambda b, s: {}["nothing"]))["shape"]
    assert "raised KeyError: 'nothing'" in line
    assert "test_testing_kit.py line" in line


def test_memory_that_is_not_plain_data_is_told():
    @dataclass
    class Remembers(Moves):
        def state_dict(self):
            return {"seen": torch.zeros(1)}

    assert "not plain data" in failed("schedule", Remembers())["memory"]


def test_the_example_holds_what_the_cases_are_about():
    batch = cases.example()
    sizes = [int((batch.group_ids[: len(cases.GROUPS)] == g).sum()) for g in (0, 1, 2)]
    assert sizes == [3, 4, 2]
    assert tied(batch)[: len(cases.GROUPS)].tolist() == [g == 2 for g in cases.GROUPS]
    assert not batch.mask[6, 2]
    assert batch.completion_mask[6, 2]
    missing = [f.name for f in dataclasses.fields(batch) if getattr(batch, f.name) is None]
    assert set(missing) <= {"token_rewards", "advantages", "returns", "written"}


def test_the_kit_needs_no_test_framework():
    for path in Path(testing.__file__).parent.glob("*.py"):
        found = re.findall(r"^ *(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not {"pytest", "lightning", "tests"} & set(found), path.name


def test_the_page_lists_the_cases():
    page = (Path(__file__).parents[1] / "docs" / "extend.md").read_text(encoding="utf-8")
    for slot, (check, defined) in CHECKS.items():
        row = f"| `{slot}` | `{check.__name__}` | {', '.join(c.name for c in defined)} |"
        assert row in page, f"docs/extend.md needs the row {row}"
