"""Whole runs in a second: a random character policy, a task that it can learn, no logger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import torch

from lit_group_rl.advantages import GroupRelative
from lit_group_rl.aggregators import TokenMean
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.module import LitGroupRL
from lit_group_rl.ratios import TokenRatio
from lit_group_rl.rewards.base import Reward
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.surrogates import Clipped
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Sample


@dataclass(frozen=True)
class FirstCharacter(Reward):
    """1 if the completion begins with one of ``wanted``: a random policy finds it, and a small model can tell."""

    wanted: str = "0123456789abcdefgh"
    weight: float = 1.0

    range = (0.0, 1.0)

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        return [float(s.completion[:1] in self.wanted and s.completion != "") for s in samples]


class Watch(RunCallback):
    """Keeps the metrics of every RL step and what ``look`` returns after each."""

    def __init__(self, look: Any = None) -> None:
        self.metrics: list[dict[str, float]] = []
        self.seen: list[Any] = []
        self.look = look

    def on_metrics(self, trainer: Any, module: Any, step: int, metrics: dict[str, float]) -> None:
        self.metrics.append(dict(metrics))
        if self.look is not None:
            self.seen.append(self.look(module))


def make_module(**changes: Any) -> LitGroupRL:
    """A GRPO module on a policy of one layer; ``changes`` replace slots and numbers."""
    parts: dict[str, Any] = {
        "policy": CharPolicy(hidden_size=16, layers=1, heads=2),
        "sampler": GroupSampler(group_size=4, max_new_tokens=4),
        "rewards": {"first": FirstCharacter()},
        "advantage": GroupRelative(),
        "ratio": TokenRatio(),
        "clip_policy": FixedClip(),
        "surrogate": Clipped(),
        "aggregator": TokenMean(),
        "learning_rate": 1e-2,
        "steps": 3,
    }
    return LitGroupRL(**(parts | changes))


def train(module: LitGroupRL, prompts_per_step: int = 4, look: Any = None, **trainer: Any) -> Watch:
    """Run it to the end on the CPU, its parts checked first."""
    assert [p for p in module.problems(prompts_per_step) if not p.warning] == []
    watch = Watch(look)
    data = PromptData(Addition(level=1), prompts_per_step=prompts_per_step, heldout_size=8, seed=module.seed)
    L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, callbacks=[watch], **trainer,
    ).fit(module, datamodule=data)  # fmt: skip
    return watch


def copied(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its weights and buffers as they are now."""
    return {k: v.detach().clone() for k, v in net.state_dict().items()}
