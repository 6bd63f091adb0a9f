"""Complete runs in a second: a character policy with random weights on one-digit addition."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch

from lit_group_rl.advantages import GroupRelative
from lit_group_rl.aggregators import SequenceMean
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.module import LitGroupRL
from lit_group_rl.ratios import TokenRatio
from lit_group_rl.rewards.base import Reward
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.surrogates import Clipped
from lit_group_rl.tiny import CharPolicy


class Digits(Reward):
    """Share of the completion's characters that are digits: random weights already get some of it."""

    weight, solved_at = 1.0, 0.5

    def score(self, samples):
        return [sum(c.isdigit() for c in s.completion) / max(1, len(s.completion)) for s in samples]


class Keep(RunCallback):
    """Remembers what was logged."""

    def __init__(self):
        self.steps: dict[int, dict[str, float]] = {}

    def on_metrics(self, trainer, module, step, metrics):
        self.steps.setdefault(step, {}).update(metrics)


def recipe(**changes: Any) -> dict[str, Any]:
    """Arguments of LitGroupRL: GRPO with two updates per rollout, with changes."""
    parts = {
        "policy": CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32),
        "sampler": GroupSampler(group_size=4, max_new_tokens=6),
        "rewards": {"digits": Digits()},
        "advantage": GroupRelative(),
        "ratio": TokenRatio(),
        "clip_policy": FixedClip(),
        "surrogate": Clipped(),
        "aggregator": SequenceMean(),
        "minibatches": 2,
        "learning_rate": 1e-3,
        "steps": 2,
    }
    return parts | changes


def fit(
    resume_from: Path | None = None, callbacks=(), data=None, spread: dict[str, Any] | None = None, **changes: Any
) -> tuple[LitGroupRL, dict]:
    """Train on one CPU, or as ``spread`` tells the trainer; the module and what it logged by RL step."""
    module = LitGroupRL(**recipe(**changes))
    module.resume_from = resume_from
    data = data or PromptData(Addition(level=1), prompts_per_step=4, heldout_size=8, seed=module.seed)
    keep = Keep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            callbacks=[keep, *callbacks],
            enable_progress_bar=False,
            enable_model_summary=False,
            **(spread or {}),
        )
        trainer.fit(module, datamodule=data)
    return module, keep.steps


def digest(module: LitGroupRL) -> str:
    """SHA-256 of all trained weights."""
    state = sorted((k, v) for k, v in module.state_dict().items() if ".reference." not in k)
    return hashlib.sha256(b"".join(v.contiguous().numpy().tobytes() for _, v in state)).hexdigest()


def weights(module: LitGroupRL) -> torch.Tensor:
    """All trained weights of the policy in one row."""
    return torch.cat([p.detach().flatten() for p in module.policy.net.parameters()])
