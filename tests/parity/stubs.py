"""TRL's own loss and advantage code on given numbers: what surrounds it (model, generation, processes) is replaced."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

TRAINERS = {"grpo": GRPOTrainer, "rloo": RLOOTrainer, "gmpo": GMPOTrainer}


class Accelerator:
    """One process."""

    device, num_processes, process_index, sync_gradients = torch.device("cpu"), 1, 0, True

    def gather(self, x: Tensor) -> Tensor:
        return x

    gather_for_metrics = gather

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        return x

    def pad_across_processes(self, x: Tensor, dim: int, pad_index: float) -> Tensor:
        return x


class Stub:
    """Stands where TRL's code says ``self``; an option that is not given is off."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(
            {
                "accelerator": Accelerator(),
                "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
                "_metrics": {"train": defaultdict(list)},
                "_logs": defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
                "_pending_extra_logs": {},
                "_pending_metrics": {},
                "_tokenizer": SimpleNamespace(pad_token_id=0),
                "epsilon_low": 0.2,
                "epsilon_high": 0.2,
                "beta": 0.0,
                "importance_sampling_level": "token",
                "top_entropy_quantile": 1.0,
                "current_gradient_accumulation_steps": 1,
                "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
                "get_gamma_weights": GRPOTrainer.get_gamma_weights,
            }
            | options
        )
        defaults = {
            "use_bias_correction_kl": False,
            "delta": None,
            "steps_per_generation": 1,
            "gradient_accumulation_steps": 1,
            "per_device_train_batch_size": 1,
            "gradient_checkpointing_kwargs": None,
        }
        self.args = SimpleNamespace(**(defaults | options))

    def __getattr__(self, name: str) -> None:
        return None

    def get_high_entropy_mask(self, *args: Any) -> Tensor:
        return GRPOTrainer.get_high_entropy_mask(self, *args)


def loss(
    trainer: str,
    logp: Tensor,
    *,
    completion_mask: Tensor,
    mask: Tensor,
    advantages: Tensor,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    entropy: Tensor | None = None,
    tokens: int | None = None,
    **options: Any,
) -> Tensor:
    """What TRL trains on.  ``mask`` [B, T] takes the place of its tool mask, ``tokens`` of its token count."""
    stub = Stub(**options)
    entropy = torch.zeros_like(logp) if entropy is None else entropy
    stub.__dict__["_get_per_token_logps_and_entropies"] = lambda *args, **kwargs: (logp, entropy, None)
    ones = torch.ones(len(logp), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": torch.ones_like(mask, dtype=torch.long),
        "completion_mask": completion_mask.long(),
        "tool_mask": mask.long(),
        "advantages": advantages,
        "num_items_in_batch": torch.tensor(float(mask.sum() if tokens is None else tokens), dtype=torch.float64),
    }
    if trainer == "rloo":  # it has no tool mask
        inputs["completion_mask"] = mask.long()
        inputs["old_logps"] = (old_logp * mask).sum(1)
    elif old_logp is not None:
        inputs["old_per_token_logps"] = old_logp
    if ref_logp is not None:
        inputs["ref_per_token_logps"] = ref_logp
    return TRAINERS[trainer]._compute_loss(stub, None, inputs)


def advantages(
    trainer: str,
    rewards: Tensor,
    *,
    lengths: list[int],
    group_size: int,
    weights: list[float] | None = None,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """TRL's advantages [B] of a reward per completion and function [B, K]."""
    stub = Stub(
        num_generations=group_size,
        num_iterations=1,
        reward_weights=torch.tensor(weights or [1.0] * rewards.shape[1], dtype=rewards.dtype),
        reward_funcs=[None] * rewards.shape[1],
        reward_func_names=[str(k) for k in range(rewards.shape[1])],
        **({"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"} | options),
    )
    ids = [[1] * n for n in lengths]
    texts = ["x"] * len(lengths)
    generated = (ids, ids, None, texts, None, {}, None, None) if trainer == "grpo" else (ids, ids, texts)
    stub.__dict__["_generate"] = lambda prompts: generated
    stub.__dict__["_calculate_rewards"] = lambda *args: rewards
    scored = iter([old_logp, ref_logp] if trainer == "rloo" else [ref_logp])
    stub.__dict__["_get_per_token_logps_and_entropies"] = lambda *args, **kwargs: (next(scored), None, None)
    stub.__dict__["ref_model"] = object()
    inputs = [{"prompt": "x"}] * len(lengths)
    return TRAINERS[trainer]._generate_and_score_completions(stub, inputs)["advantages"]
