"""LitGroupRL on a workload, through the public Python interface: GRPO as TRL's defaults state it, without KL."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as L

from benchmarks.meter import Meter, rss_mb
from benchmarks.workloads import Workload, as_text, make_model, make_prompts, make_tokenizer, reward
from lit_group_rl.advantages import GroupRelative
from lit_group_rl.aggregators import TokenMean
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.data import PromptData
from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.module import PromptStream
from lit_group_rl.module import LitGroupRL
from lit_group_rl.policy import HFPolicy
from lit_group_rl.ratios import TokenRatio
from lit_group_rl.rewards.base import Reward
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.surrogates import Clipped
from lit_group_rl.types import Prompt


class GivenPolicy(HFPolicy):
    """The workload's model and tokenizer."""

    def __init__(self, w: Workload) -> None:
        super().__init__(path="")
        self.workload = w

    def _tokenizer(self) -> Any:
        return make_tokenizer(self.workload)

    def _model(self) -> Any:
        return make_model(self.workload).eval()


class WorkloadReward(Reward):
    """The workload's reward of the token ids."""

    weight, solved_at = 1.0, 1.0

    def __init__(self, w: Workload, ids_of: dict[str, list[int]]) -> None:
        self.workload, self.ids_of = w, ids_of

    def score(self, samples):
        raise NotImplementedError("it reads tokens")

    def score_batch(self, batch):
        rows = zip(batch.samples, batch.completion_ids.tolist(), strict=True)
        return [reward(self.workload, self.ids_of[s.prompt], ids[: s.num_tokens]) for s, ids in rows]


class Given(PromptSource):
    """The workload's prompts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def load(self, heldout_size):
        return [Prompt(text) for text in self.texts], []


class InOrder(PromptStream):
    """Prompts as they come, as on the other side."""

    def _at(self, cursor):
        return self.prompts[cursor]


class Data(PromptData):
    """The workload's prompts in order."""

    def setup(self, stage=None):
        super().setup(stage)
        self._stream = InOrder(self.train, self.seed, self._stream.cursor)


class Marks(L.Callback):
    """Cycle times and completion lengths."""

    def __init__(self, meter: Meter, warmup: int) -> None:
        self.meter, self.warmup = meter, warmup

    def on_train_start(self, trainer, module):
        self.meter.mark()

    def on_train_batch_end(self, trainer, module, *args):
        self.meter.lengths.append(module.last_batch.lengths.tolist())
        self.meter.mark()
        if module.rl_step == self.warmup:
            self.meter.reset()


def make(w: Workload, steps: int, meter: Meter, warmup: int) -> tuple[LitGroupRL, PromptData, L.Trainer]:
    """Module, data and trainer of a run."""
    texts = [as_text(p) for p in make_prompts(w, w.prompts * steps)]
    ids_of = dict(zip(texts, make_prompts(w, w.prompts * steps), strict=True))
    module = LitGroupRL(
        policy=GivenPolicy(w),
        sampler=GroupSampler(group_size=w.group, max_new_tokens=w.max_completion),
        rewards={"workload": WorkloadReward(w, ids_of)},
        advantage=GroupRelative(),
        ratio=TokenRatio(),
        clip_policy=FixedClip(),
        surrogate=Clipped(),
        aggregator=TokenMean(),
        minibatches=w.minibatches,
        micro_batch_tokens=512,
        learning_rate=w.lr,
        steps=steps,
        seed=w.seed,
    )
    data = Data(Given(texts), prompts_per_step=w.prompts, heldout_size=0, seed=w.seed)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Marks(meter, warmup)],
    )
    return module, data, trainer


def run(w: Workload, cycles: int, warmup: int, flops: bool) -> dict[str, Any]:
    """Train ``warmup + cycles`` rollouts."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    meter = Meter(flops)
    module, data, trainer = make(w, warmup + cycles, meter, warmup)
    module.policy.load()
    meter.wrap(module.policy, "generate", "rollout")
    meter.wrap(module.policy, "score", "forward")
    meter.wrap(module, "manual_backward", "backward")
    step = module.make_optimizer

    def optimizer(groups):
        made = step(groups)
        meter.wrap(made, "step", "optimizer")
        return made

    module.make_optimizer = optimizer
    base = rss_mb()
    trainer.fit(module, datamodule=data)
    return meter.result(warmup, w.rows, base)
