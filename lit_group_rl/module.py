"""The loop: one batch of prompts is one RL step, rollout and updates together.  It knows no algorithm.

Read top to bottom: ``training_step`` -> ``rollout`` -> ``judge`` -> ``improve`` -> ``update`` -> ``policy_loss``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lit_group_rl import parallel
from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.batching import counts, microbatches, minibatches, weightless
from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.critics.base import AuxiliaryModel, Critic
from lit_group_rl.data.module import StepPrompts
from lit_group_rl.engine import Engine, trainable
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.evaluators.base import Evaluator
from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.functional.collectives import all_sum, world_size
from lit_group_rl.functional.rng import seeded
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.numbers import Diverged
from lit_group_rl.policy import HFPolicy
from lit_group_rl.pulse import PULSE
from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.recording import log_advantages, log_rollout, log_trust_region
from lit_group_rl.rewards.base import Reward, RewardShaper
from lit_group_rl.rewards.early import EarlyScores
from lit_group_rl.rewards.runner import score_rewards
from lit_group_rl.samplers.base import Sampler
from lit_group_rl.schedules.base import Clock, Number, Schedule
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Counts, LossContext, Problem, Recipe, RolloutBatch
from lit_group_rl.update_schedules.base import UpdateSchedule


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The default optimizer: AdamW without weight decay, betas (0.9, 0.999)."""
    # fused: no copies of the weights while it steps
    return torch.optim.AdamW(parameters, weight_decay=0.0, fused=True)


class LitGroupRL(Engine):
    """Composes the parts of a recipe and trains the policy with them."""

    def __init__(
        self,
        policy: HFPolicy,
        sampler: Sampler,
        rewards: dict[str, Reward],
        advantage: AdvantageEstimator,
        ratio: ImportanceRatio,
        clip_policy: ClipPolicy,
        surrogate: Surrogate,
        aggregator: LossAggregator,
        filter: GroupFilter | None = None,
        shapers: dict[str, RewardShaper] | None = None,
        loss_weights: dict[str, LossWeight] | None = None,
        aux_losses: dict[str, AuxLoss] | None = None,
        critic: Critic | None = None,
        evaluator: Evaluator | None = None,
        update_schedule: UpdateSchedule | None = None,
        heldout: HeldOut | None = None,
        ppo_epochs: int = 1,
        minibatches: int = 1,
        micro_batch_tokens: int = 16384,
        learning_rate: Number = 1e-4,
        optimizer: OptimizerCallable = adamw,
        max_grad_norm: float | None = 1.0,
        steps: int = 100,
        seed: int = 1,
    ) -> None:
        """The slots in the order in which they act, then the numbers of the loop.

        Args:
            policy: The model that is trained.
            sampler: Draws the completions of a step.
            rewards: Scores completions; the total is their weighted sum, the first decides what counts as solved.
            advantage: Scores to advantages.
            ratio: How far the policy has moved since the rollout.
            clip_policy: Where the ratio may move.
            surrogate: Ratio, bounds and advantage to a loss per token.
            aggregator: Loss per token to one number.
            filter: Which groups are trained on; null keeps all.
            shapers: Change scores after the filter.
            loss_weights: Factors on the policy loss.
            aux_losses: Terms beside the policy loss.
            critic: Predicts returns.
            evaluator: Second agent that judges completions.
            update_schedule: Which models learn at which step; null: all, always.
            heldout: When and how held-out prompts are evaluated; null: never.
            ppo_epochs: Passes over a rollout.
            minibatches: Optimizer steps per pass, each over whole groups.
            micro_batch_tokens: Tokens in memory at once; changes memory and speed, never the result.
            learning_rate: Of the policy.
            optimizer: Optimizer class and its other options; its lr is set by learning_rate.
            max_grad_norm: Gradients of each model are scaled down to this norm; null: never.
            steps: RL steps of the run.
            seed: Every random draw of the run derives from it.
        """
        super().__init__()
        self.parts: dict[str, Any] = {
            "policy": policy, "sampler": sampler, "filter": filter, "rewards": rewards, "shapers": shapers or {},
            "advantage": advantage, "ratio": ratio, "clip_policy": clip_policy, "surrogate": surrogate,
            "loss_weights": loss_weights or {}, "aux_losses": aux_losses or {}, "aggregator": aggregator,
            "critic": critic, "evaluator": evaluator, "update_schedule": update_schedule, "heldout": heldout,
            "learning_rate": learning_rate,
        }  # fmt: skip
        self.policy, self.sampler, self.filter, self.rewards = policy, sampler, filter, rewards
        self.shapers, self.loss_weights, self.aux_losses = shapers or {}, loss_weights or {}, aux_losses or {}
        self.advantage, self.ratio, self.clip_policy, self.surrogate = advantage, ratio, clip_policy, surrogate
        self.aggregator, self.update_schedule, self.heldout = aggregator, update_schedule, heldout
        models = {k: m for k, m in (("critic", critic), ("evaluator", evaluator)) if m is not None}
        self.models = cast("dict[str, AuxiliaryModel]", nn.ModuleDict(models))
        self.ppo_epochs, self.minibatches, self.micro_batch_tokens = ppo_epochs, minibatches, micro_batch_tokens
        for model in self.models.values():
            model.micro_batch_tokens = micro_batch_tokens
        self.learning_rate, self.make_optimizer, self.max_grad_norm = learning_rate, optimizer, max_grad_norm
        self.steps, self.seed = steps, seed
        self.early = EarlyScores(rewards)
        self._refuse_bad_numbers()

    # ---- before the first step

    def _refuse_bad_numbers(self) -> None:
        for name in ("ppo_epochs", "minibatches", "micro_batch_tokens", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        rate = self.learning_rate
        if not isinstance(rate, Schedule) and not 0 <= rate < float("inf"):
            raise ValueError(f"model.learning_rate must be a finite number of at least 0, got {rate}")
        if self.max_grad_norm is not None and not 0 < self.max_grad_norm < float("inf"):
            raise ValueError(f"model.max_grad_norm must be a finite number above 0 or null, got {self.max_grad_norm}")
        if not self.rewards:
            raise ValueError("model.rewards is empty: name at least one reward")

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps made from one rollout."""
        return self.ppo_epochs * self.minibatches

    @property
    def prompts_wanted(self) -> int:
        """Prompts of the present RL step, over all processes."""
        return self.sampler.prompts(self.clock, self.data.prompts_per_step)

    def describe(self, prompts_per_step: int) -> Recipe:
        """The recipe as components see it when they check each other."""
        return Recipe(self.parts, prompts_per_step, self.sampler.group_size, self.updates_per_rollout)

    def problems(self, prompts_per_step: int) -> list[Problem]:
        """Contradictions between the parts, and settings without effect."""
        recipe = self.describe(prompts_per_step)
        found = [problem for _, part in recipe.components() for problem in part.checks(recipe)]
        if self.minibatches > prompts_per_step:
            found.append(
                Problem(
                    "model.minibatches",
                    f"{self.minibatches} minibatches of whole groups cannot be cut from {prompts_per_step} prompts",
                    f"Lower it to {prompts_per_step} or raise data.prompts_per_step",
                )
            )
        if all(reward.weight == 0 for reward in self.rewards.values()):
            fix = "Give at least one reward a weight"
            found.append(Problem("model.rewards", "all weights are 0, so no completion would have a score", fix))
        if self.learning_rate == 0:
            message = "the learning rate is 0, so the policy stays what it is"
            found.append(Problem("model.learning_rate", message, "Raise it to train", warning=True))
        turns = self.update_schedule
        if turns is not None and not any("policy" in turns.active(Clock(k, self.steps)) for k in range(self.steps)):
            message, fix = f"the policy never learns within {self.steps} steps", "Raise steps, or shorten other phases"
            found.append(Problem("model.update_schedule", message, fix, warning=True))
        return found

    # ---- one RL step

    def training_step(self, prompts: Any, batch_idx: int) -> None:
        """One RL step; after numbers went bad and the run went back, as many as it takes to be one further."""
        goal = min(self.rl_step + 1, self.steps)
        try:
            while self.rl_step < goal:
                self.step(prompts)
                prompts = None
        except StopIteration as e:  # Lightning would take it for the end of the data and skip the batch
            raise RuntimeError("a component raised StopIteration") from e

    def step(self, prompts: Any = None) -> None:
        """Sample, score, estimate, update; then log what happened."""
        bag = MetricBag()
        try:
            with self.timed("time/step"):
                self.numbers.check_weights(self)
                batch, groups = self.rollout(prompts or self.data.more(self.prompts_wanted), bag)
                if groups:
                    self.judge(batch, bag)
                    with self.signals.stage(self.device):
                        pass  # the last place where a signal breaks the step off, on all processes together
                    self.improve(batch, bag)
                self.numbers.check_weights(self)
        except Diverged as broken:
            self.numbers.go_back(self, str(broken))
            return
        self.last_batch = batch
        self.rl_step += 1
        self.finish_step(self.recorder.finish(bag, self))

    @torch.no_grad()
    def rollout(self, prompts: Any, bag: MetricBag) -> tuple[RolloutBatch, int]:
        """Completions with their scores, of the groups that the filter keeps, and how many those are over all
        processes; dropped groups are sampled anew.
        """
        clock, wanted = self.clock, self.prompts_wanted
        kept: list[RolloutBatch] = []
        groups = 0
        rounds = 1 if self.filter is None else self.filter.max_rounds
        for k in range(rounds):
            with self.timed("time/sample"):
                batch = self.sample(prompts)
            with self.timed("time/reward"), self.signals.stage(self.device):
                score_rewards(self.rewards, batch, clock, self.seed, self.monitor, self.early)
            if prompts.prompts:
                log_rollout(batch, bag)
            else:
                batch = weightless(batch)
            keep = torch.ones_like(batch.truncated) if self.filter is None else self.filter.keep(batch)
            keep = keep & (batch.group_ids >= 0)
            have = len(torch.unique(batch.group_ids[keep]))
            bag.mean("group/used_frac", have, len(torch.unique(batch.group_ids[batch.group_ids >= 0])))
            kept.append(batch.rows(keep.nonzero().squeeze(1)))
            groups += int(all_sum(torch.tensor(have, device=self.device)))
            self.recorder.count(prompts=len(prompts), completions=len(batch), tokens=int(batch.own_lengths.sum()))
            if groups >= wanted or k + 1 == rounds:
                break
            prompts = self.data.more(wanted - groups, (k + 1) * wanted)
        batch = RolloutBatch.cat(kept)
        return (batch if len(batch) or not groups else weightless(batch)), groups

    def sample(self, prompts: Any) -> RolloutBatch:
        """Completions of this process's prompts, and what the auxiliary models say of them.

        Whole weights are held while completions are drawn: they end anywhere.  What follows goes in step.
        """
        nothing = not prompts.prompts
        if nothing:  # fewer prompts than processes: one to keep pace with, thrown away
            prompts = StepPrompts([self.data.train[0]], [0])
        drawing = seeded("sample", self.seed, self.rl_step)
        telling = self.early.listening(self.policy)
        with parallel.unsharded(self.policy.net), drawing, self.signals.stage(self.device), telling:
            batch = self.sampler.sample(self.policy, prompts.prompts, prompts.positions, self.clock, self.seed)
        batch.seed = self.seed
        for model in self.models.values():
            with seeded("annotate", self.seed, self.rl_step):
                model.annotate(batch, self.policy)
        return batch.rows(torch.empty(0, dtype=torch.long, device=self.device)) if nothing else batch

    @torch.no_grad()
    def judge(self, batch: RolloutBatch, bag: MetricBag) -> None:
        """Shape the scores and turn them into advantages; let components take their statistics of the rollout."""
        clock, recipe = self.clock, self.describe(1)
        with self.timed("time/train"):
            if self.updates_per_rollout > 1 or recipe.needs("old_logp"):
                exact = batch.exact_logp and not self._autocast
                batch.old_logp = batch.behaviour_logp if exact else self.in_parts(batch, self._logp)
            if recipe.needs("ref_logp"):
                batch.ref_logp = self.in_parts(batch, self.policy.reference_logp)
            for shaper in self.shapers.values():
                change = shaper.shape(batch, clock)
                if change.dim() == 1:
                    assert batch.scores is not None
                    batch.scores = batch.scores + change
                else:
                    batch.token_rewards = change if batch.token_rewards is None else batch.token_rewards + change
            batch.metrics = bag  # the sampler's and rewards' numbers are in it; components may add to it from here on
            result = self.advantage.estimate(batch)
            batch.advantages, batch.returns = result.values, result.returns
            for _, part in recipe.components():
                part.prepare(batch, clock)
            log_advantages(batch, bag)

    def improve(self, batch: RolloutBatch, bag: MetricBag) -> None:
        """``ppo_epochs`` passes over the rollout, ``minibatches`` optimizer steps in each."""
        optimizer: Any = self.optimizers()  # of several it would be a list
        names = ["policy", *(k for k, m in self.models.items() if trainable(m))]
        rates = [self.learning_rate, *(self.models[k].learning_rate for k in names[1:])]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = self.clock.at(rate) * self.numbers.rate
        bag.max("optim/lr", optimizer.param_groups[0]["lr"])
        with self.timed("time/train"):
            for epoch in range(self.ppo_epochs):
                for k, index in enumerate(minibatches(batch, self.minibatches, self.seed, self.rl_step, epoch)):
                    with seeded("update", self.seed, self.rl_step, epoch, k):
                        self.update(batch.rows(index), optimizer, bag)

    def update(self, batch: RolloutBatch, optimizer: Any, bag: MetricBag) -> None:
        """One optimizer step from one minibatch, its micro-batches accumulated under normalisers of the whole."""
        auxes = self.aux_losses
        masks = [batch.mask, *(aux.selection(batch) for aux in auxes.values())]
        total, *aux_counts = counts(masks, batch.group_ids)
        whole = self.surrogate.whole_groups or any(a.whole_groups for a in auxes.values())
        optimizer.zero_grad()
        if any(part.whole_minibatch for part in self._weights_and_terms):
            self._observe(batch, total, bag)
        batch = self._with_gradient(batch, bag)
        packs = microbatches(batch, self.micro_batch_tokens, whole_groups=whole, shared_prompts=self.policy.packs)
        assert self.policy.net is not None
        nets = [self.policy.net, *self.models.values()]
        for i, index in enumerate(packs):
            micro = batch.rows(index) if len(index) else weightless(batch)  # another process has one more
            PULSE.at("update", f"RL step {self.rl_step + 1}, micro-batch {i + 1} of {len(packs)}")
            loss = self.total_loss(micro, total, dict(zip(auxes, aux_counts, strict=True)), 1 / len(packs), bag)
            with parallel.gradient_sync(self.trainer.strategy, nets, last=i + 1 == len(packs)):
                self.manual_backward(loss * world_size())
        self.boundary = None  # from the first update on the weights are those of no finished step
        optimizer.step()
        self.numbers.observe(self._finite, batch, self)
        for name in self.active - {"policy"}:
            self.models[name].after_step()
        bag.mean("optim/grad_norm", self._grad_norms["policy"])
        for name in self.models:
            bag.mean(f"optim/grad_norm_{name}", self._grad_norms.get(name, 0.0))
        self.recorder.count(updates=1, skipped=int(self._skipped))

    def total_loss(
        self, batch: RolloutBatch, total: Counts, aux_counts: dict[str, Counts], share: float, bag: MetricBag
    ) -> Tensor:
        """This micro-batch's share of the loss of every model that is learning."""
        active, recipe = self.active, self.describe(1)
        wants_hidden = any("hidden" in m.needs for m in self.models.values())
        with torch.set_grad_enabled("policy" in active):
            scores = self.policy.score(batch, entropy=bool(recipe.needs("entropy")), hidden=wants_hidden)
        if scores.hidden is not None:
            batch.features["hidden"] = scores.hidden.detach()
        ctx = self._context(batch, scores.logp, scores.entropy, total, bag)
        ctx.hidden = scores.hidden
        losses = {}
        if "policy" in active:
            losses["policy"] = self.policy_loss(ctx)
            for name, aux in self.aux_losses.items():
                term = (aux.aggregator() or self.aggregator).reduce(
                    aux.term(ctx), aux.selection(batch), aux_counts[name]
                )
                bag.mean(f"loss/{name}", term.detach() * world_size(), share)
                losses[name] = ctx.clock.at(aux.coef) * term
        for name, model in self.models.items():
            if name in active:
                losses[name] = model.loss(ctx, self.policy)
                bag.mean(f"loss/{name}", losses[name].detach() * world_size(), share)
        loss = torch.stack(list(losses.values())).sum()
        if "policy" in losses:
            bag.mean("loss/policy", losses["policy"].detach() * world_size(), share)
        bag.mean("loss/total", loss.detach() * world_size(), share)
        return loss

    def policy_loss(self, ctx: LossContext) -> Tensor:
        """Ratio, bounds, surrogate, weights, aggregate."""
        bounds = self.clip_policy.bounds(ctx)
        values = self.surrogate.loss(ctx, bounds)
        for weight in self.loss_weights.values():
            values = values * weight.weight(ctx)
        log_trust_region(ctx, bounds, moved=self.updates_per_rollout > 1)
        return self.aggregator.reduce(values, ctx.mask, ctx.counts)

    # ---- pieces of a step

    def _with_gradient(self, batch: RolloutBatch, bag: MetricBag) -> RolloutBatch:
        """Without the rows that have no gradient: advantage 0, and no other term on them.  Normalisers are kept."""
        idle = self.surrogate.zero_without_advantage and not self.aux_losses and self.active == {"policy"}
        if not idle:
            return batch
        keep = ((batch.advantages != 0) & batch.mask).any(1)
        if self.updates_per_rollout > 1:  # clipping cannot bind there, and the share is over all tokens
            for tag in ("policy/clip_low_frac", "policy/clip_high_frac", "policy/clip_frac"):
                bag.mean(tag, 0.0, batch.mask[~keep].sum())
        return batch.rows(keep.nonzero().squeeze(1))

    def _context(
        self, batch: RolloutBatch, logp: Tensor, entropy: Tensor | None, total: Counts, bag: MetricBag
    ) -> LossContext:
        old = logp.detach() if batch.old_logp is None else batch.old_logp.to(logp.dtype)
        token_log_ratio = torch.where(batch.mask, logp - old, torch.zeros_like(logp))
        assert batch.advantages is not None
        advantages = batch.advantages.to(logp.dtype)
        moved = self.clip_policy.pre(token_log_ratio, advantages, batch.mask)
        log_ratio = self.ratio.perturbed(self.ratio.log_ratio(moved, batch.mask), batch)
        return LossContext(batch, logp, log_ratio, entropy, total, self.clock, self.seed, bag)

    @torch.no_grad()
    def _observe(self, batch: RolloutBatch, total: Counts, bag: MetricBag) -> None:
        """Show the whole minibatch under the present weights to the loss terms that need its statistics."""
        entropies: list[Tensor] = []
        logp = self.in_parts(batch, lambda part: self._logp_and_entropy(part, entropies))
        entropy = self.in_parts(batch, lambda part: entropies.pop(0)) if entropies else None
        ctx = self._context(batch, logp, entropy, total, bag)
        for part in self._weights_and_terms:
            part.observe(ctx)

    @property
    def _weights_and_terms(self) -> list[LossWeight | AuxLoss]:
        return [*self.loss_weights.values(), *self.aux_losses.values()]

    def _logp(self, batch: RolloutBatch) -> Tensor:
        return self.policy.score(batch).logp

    def _logp_and_entropy(self, batch: RolloutBatch, entropies: list[Tensor]) -> Tensor:
        scores = self.policy.score(batch, entropy=True)
        assert scores.entropy is not None
        entropies.append(scores.entropy)
        return scores.logp
