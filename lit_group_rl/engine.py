"""What surrounds the RL step: loading, optimizer, resuming, evaluation, logging, state.  The step: ``module.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from torch import Tensor, nn

from lit_group_rl import batching, checkpoint, parallel
from lit_group_rl.critics.base import AuxiliaryModel
from lit_group_rl.data.module import PromptData
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.numbers import Numbers
from lit_group_rl.policy import HFPolicy
from lit_group_rl.pulse import PULSE
from lit_group_rl.recording import Recorder
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import RewardMonitor
from lit_group_rl.samplers.base import Sampler
from lit_group_rl.schedules.base import Clock, Number, Schedule
from lit_group_rl.signals import StopSignals
from lit_group_rl.types import Recipe, RecipeError, RolloutBatch
from lit_group_rl.update_schedules.base import UpdateSchedule


class Engine(L.LightningModule):
    """A LightningModule that makes RL steps: everything but the step."""

    policy: HFPolicy
    sampler: Sampler
    rewards: Mapping[str, Reward]
    models: Mapping[str, AuxiliaryModel]
    """Critic and evaluator, where the recipe has them."""
    update_schedule: UpdateSchedule | None
    heldout: HeldOut | None
    learning_rate: Number
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    max_grad_norm: float | None
    micro_batch_tokens: int
    steps: int
    seed: int

    def __init__(self) -> None:
        """Nothing done yet."""
        super().__init__()
        self.automatic_optimization = False
        self.rl_step = 0
        """Finished RL steps."""
        self.last_batch: RolloutBatch | None = None
        """The rollout of the last RL step."""
        self.resume_from: Path | None = None
        """Folder of the run to go on from."""
        self.run_folder: Path | None = None
        """Where checkpoints and bad batches go; the checkpoint callback sets it."""
        self.recorder = Recorder()
        self.monitor = RewardMonitor()
        self.numbers = Numbers()
        self.signals = StopSignals()
        self.boundary: dict[str, Any] | None = None
        """All but weights and optimizer at the last finished RL step; None while those move."""
        self.reference_print: str | None = None
        self._checkpoint: checkpoint.Checkpoint | None = None
        self._resumed = False
        self._threads: int | None = None

    def describe(self, prompts_per_step: int) -> Recipe:
        """The recipe as components see it when they check each other."""
        raise NotImplementedError

    @property
    def data(self) -> PromptData:
        """Where prompts come from."""
        return self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without declaring it

    # ---- loading

    def setup(self, stage: str) -> None:
        """Take counters and data position back from the run that is resumed (or whose weights are evaluated)."""
        if self.resume_from is None or self._resumed:
            return
        self._checkpoint = checkpoint.newest(self.resume_from)
        if self._checkpoint is None:
            raise RecipeError(f"resume: {self.resume_from} holds no usable checkpoint. Start anew without resume")
        state = self._checkpoint.state
        self._resumed = True
        self.rl_step = state["rl_step"]
        self.load_component_state(state["module"])
        if stage == "fit":
            self.data.load_state_dict(state["data"])
            if not self.steps_left:
                rank_zero_info(f"already complete: {self.rl_step} of {self.steps} RL steps. Raise --steps to go on")

    @property
    def steps_left(self) -> int:
        """RL steps that Lightning is to ask for; one more if all that is left is an evaluation that was broken off."""
        pending = self._checkpoint is not None and self._checkpoint.state["pending"] is not None
        return max(self.steps - self.rl_step, int(pending), 0)

    def configure_model(self) -> None:
        """Load weights, copy the reference, make the critics, shard.  Called again by a later validate: no effect."""
        loaded = self.policy.net is not None
        self.policy.load()
        assert self.policy.net is not None
        self._threads = parallel.suit_threads(self.policy.net)
        if loaded:
            return
        self.data.fit_context(self.policy, self.sampler.longest)
        for model in self.models.values():
            model.build(self.policy)
        if self.describe(1).needs("ref_logp"):
            self.policy.add_reference()
            self._note_reference()
        parallel.prepare_ddp(self.trainer.strategy, several_models=len(self.models) > 0)
        if isinstance(self.trainer.strategy, parallel.FSDP2Strategy):
            for net in (self.policy.net, self.policy.reference, *self.models.values()):
                if net is not None and any(True for _ in net.parameters()):
                    self.trainer.strategy.shard(net)
        if self._checkpoint is not None:
            checkpoint.restore_weights(self, self._checkpoint)

    def teardown(self, stage: str) -> None:
        """Leave the process with as many threads as it had."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    def _note_reference(self) -> None:
        """Remember what the policy is held to: a resumed run must have the same reference, that of its start."""
        self.reference_print = checkpoint.fingerprint(self.policy.reference_weights())
        saved = self._checkpoint.state["reference"] if self._checkpoint is not None else None
        if saved is not None and saved != self.reference_print:
            raise RecipeError(
                "model.policy: its weights are not those that the resumed run started from, so the reference of the KL "
                "term would be another. Resume with the policy of that run (see its config.yaml), or start a new run"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer; the policy's parameters first, then a group per auxiliary model."""
        groups = [{"params": trainable(self.policy.net), "lr": self.clock.at(self.learning_rate)}]
        if not groups[0]["params"]:
            raise RecipeError("model.policy: no parameter is trainable. Unfreeze some, or add an adapter (lora)")
        groups += [
            {"params": trainable(m), "lr": self.clock.at(m.learning_rate)} for m in self.models.values() if trainable(m)
        ]
        return self.make_optimizer(groups)

    # ---- where the run stands

    @property
    def clock(self) -> Clock:
        """Where the run stands."""
        return Clock(self.rl_step, self.steps)

    @property
    def active(self) -> frozenset[str]:
        """Names of the models that learn in the present step."""
        everyone = frozenset({"policy", *self.models})
        return everyone if self.update_schedule is None else self.update_schedule.active(self.clock) & everyone

    # ---- one update

    def in_parts(self, batch: RolloutBatch, function: Any) -> Tensor:
        """A [B, T] result computed micro-batch by micro-batch, without gradient."""
        return batching.in_parts(batch, self.micro_batch_tokens, function, shared_prompts=self.policy.packs)

    @property
    def _autocast(self) -> bool:
        return torch.is_autocast_enabled(self.device.type)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Clip each model's gradients; where nothing moved or a number is not finite, the step does nothing."""
        parts = {"policy": trainable(self.policy.net)} | {k: trainable(m) for k, m in self.models.items()}
        for name in parts.keys() - self.active:
            for p in parts[name]:
                p.grad = None
        self._grad_norms = {k: parallel.clip_gradients(ps, self.max_grad_norm) for k, ps in parts.items()}
        norms = torch.tensor(list(self._grad_norms.values()), device=self.device)
        self._finite = not bool(all_sum((~norms.isfinite()).any().float()))
        self._skipped = not self._finite or not any(self._grad_norms.values())
        if self._skipped:  # no weight decay and no momentum drift either
            optimizer.zero_grad(set_to_none=True)

    # ---- evaluation and logging

    def on_train_start(self) -> None:
        """Take optimizer and callbacks back and finish an interrupted evaluation, or evaluate the start."""
        pending = None
        if self._checkpoint is not None:
            checkpoint.restore_training(self, self._checkpoint)
            pending = self._checkpoint.state["pending"]
            self._checkpoint = None  # its weights need not stay in memory
        self.recorder.start(self)
        self.signals.install()
        self.boundary = checkpoint.plain_state(self, pending)
        if pending is not None:
            self.finish_step(pending)
        elif self.rl_step == 0 and self.heldout is not None:
            self.emit(self.evaluate())

    def evaluate(self) -> dict[str, float]:
        """Held-out accuracy, and the time it took."""
        assert self.heldout is not None
        bag = MetricBag()
        prompts = self.data.heldout_share()
        with self.timed("time/eval"), parallel.unsharded(self.policy.net), self.signals.stage(self.device):
            self.heldout.run(self.policy, self.sampler, self.rewards, prompts, self.seed, bag)
        return bag.reduce() | self.recorder.take_time("time/eval")

    def finish_step(self, metrics: dict[str, float]) -> None:
        """Evaluate when due, show the step's numbers to the schedules, log them."""
        if self.heldout is not None and self.heldout.due(self.clock):
            self.boundary = checkpoint.plain_state(self, pending=metrics)
            metrics = metrics | self.evaluate()
        for _, part in self.describe(1).components():
            if isinstance(part, Schedule):
                part.observe(metrics)
        self.emit(metrics)
        self.boundary = checkpoint.plain_state(self)

    def emit(self, metrics: dict[str, float]) -> None:
        """Give the numbers of ``rl_step`` finished steps to every logger and callback."""
        self.recorder.emit(metrics, self)

    @contextmanager
    def timed(self, tag: str) -> Iterator[None]:
        """Add the seconds of a stage to the step's times."""
        began = time.perf_counter()
        PULSE.at(tag.removeprefix("time/"), f"RL step {self.rl_step + 1}")
        yield
        self.recorder.add_time(tag, time.perf_counter() - began)

    def validation_step(self, prompts: Any, batch_idx: int) -> None:
        """Held-out evaluation of one batch, for ``validate`` and ``test``."""
        heldout = self.heldout or HeldOut()
        heldout.run(self.policy, self.sampler, self.rewards, prompts, self.seed, self._validation)

    test_step = validation_step

    def on_validation_epoch_start(self) -> None:
        """Start counting; whole weights are held, since completions end anywhere."""
        self._validation = MetricBag()
        self._whole = ExitStack()
        self._whole.enter_context(parallel.unsharded(self.policy.net))

    def on_validation_epoch_end(self) -> None:
        """Log the set's numbers."""
        self._whole.close()
        if not self.trainer.sanity_checking:
            self.log_dict(self._validation.reduce())

    on_test_epoch_start, on_test_epoch_end = on_validation_epoch_start, on_validation_epoch_end
    on_predict_epoch_start = on_validation_epoch_start

    def on_predict_epoch_end(self) -> None:
        """Share the weights out again."""
        self._whole.close()

    def predict_step(self, prompts: Any, batch_idx: int) -> list[dict[str, Any]]:
        """Greedy completions: position among the held-out prompts of all processes, prompt, completion, answer."""
        if not prompts.prompts:
            return []
        samples = (self.heldout or HeldOut()).greedy(self.policy, self.sampler, prompts).samples
        return [
            {"position": at, "prompt": s.prompt, "completion": s.completion, "answer": s.answer}
            for at, s in zip(prompts.positions, samples, strict=True)
        ]

    # ---- state

    def component_state(self) -> dict[str, Any]:
        """Counters and the memory of components that are not models, as plain data."""
        parts = {p: c.state_dict() for p, c in self.describe(1).components() if not isinstance(c, nn.Module)}
        own: dict[str, Recorder | RewardMonitor | Numbers]
        own = {"recorder": self.recorder, "monitor": self.monitor, "numbers": self.numbers}
        return {"parts": {p: s for p, s in parts.items() if s}} | {name: one.state_dict() for name, one in own.items()}

    def load_component_state(self, state: dict[str, Any]) -> None:
        """Take back what ``component_state`` gave."""
        for path, part in self.describe(1).components():
            if path in state["parts"]:
                part.load_state_dict(state["parts"][path])
        self.recorder.load_state_dict(state["recorder"])
        self.monitor.load_state_dict(state["monitor"])
        self.numbers.load_state_dict(state["numbers"])


def trainable(net: nn.Module | None) -> list[nn.Parameter]:
    """Parameters that take gradients."""
    return [] if net is None else [p for p in net.parameters() if p.requires_grad]
