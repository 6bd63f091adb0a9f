"""Small runs whose results must not depend on the number of processes.  Run as a script: one of the processes.

LOCAL_RANK=1 WORLD_SIZE=2 ... python scenarios.py STRATEGY FOLDER
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lit_group_rl import parallel
from lit_group_rl.advantages import GAE, LightCriticBaseline
from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.critics import LightCritic, ValueModel
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.evaluators.dual_agent import DualAgent
from lit_group_rl.filters import MixedOutcome
from lit_group_rl.functional.collectives import all_objects, rank, world_size
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.rewards.evaluator_score import EvaluatorScore
from lit_group_rl.surrogates import Clipped
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.update_schedules import Alternate, CriticWarmUp
from tests.tiny_runs import Digits, fit

STEPS = 5


class FewMixed(Digits):
    """Only every third prompt has completions that differ: whole processes are left without a group."""

    def score(self, samples):
        values = super().score(samples)
        return [v if seed_of(s.prompt) % 3 == 0 else 0.0 for v, s in zip(values, samples, strict=True)]


class LastBreaks(Surrogate):
    """Clipped, but the third update is not a number on the last process: all must skip it."""

    def __init__(self):
        self.updates = 0

    def loss(self, ctx, bounds):
        self.updates += 1
        broken = self.updates == 3 and rank() == world_size() - 1
        return Clipped().loss(ctx, bounds) * (float("nan") if broken else 1.0)


class Watch(RunCallback):
    """Rows of every step over all processes, by (group, member)."""

    def __init__(self):
        self.rows: list[dict[str, list[Any]]] = []

    def on_metrics(self, trainer, module, step, metrics):
        if not step:
            return
        batch = module.last_batch
        texts = [(s.prompt, s.completion) for s in batch.samples]
        mine = list(zip(batch.row_ids.tolist(), texts, batch.scores.tolist(), strict=True))
        every = sorted(row for part in all_objects(mine) for row in part if row[0] >= 0)
        self.rows.append(
            {
                "prompts": sorted({text[0] for _, text, _ in every}),
                "completions": [[i, text[1]] for i, text, _ in every],
                "scores": [score for *_, score in every],
            }
        )


def policy() -> CharPolicy:
    return CharPolicy(hidden_size=32, layers=2, heads=2, context_tokens=48)


def run(spread: dict[str, Any], *callbacks: Any, **changes: Any) -> dict[str, Any]:
    """Metrics, rows and final weights of a run over all processes."""
    watch = Watch()
    changes = {"policy": policy(), "steps": STEPS, "learning_rate": 1e-3, "heldout": HeldOut(every=2)} | changes
    module, log = fit(callbacks=[watch, *callbacks], spread=spread, **changes)
    weights = {}
    for name, net in (("policy", module.policy.net), *module.models.items()):
        weights |= {f"{name}.{k}": v.float() for k, v in parallel.full_state(net).items()}
    return {"metrics": log, "rows": watch.rows, "weights": weights}


SCENARIOS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "kl": lambda spread: run(spread, aux_losses={"kl": KL(0.1)}),
    "numbers break on one process": lambda spread: run(spread, aux_losses={"kl": KL(0.1)}, surrogate=LastBreaks()),
    "kl in small pieces": lambda spread: run(spread, aux_losses={"kl": KL(0.1)}, micro_batch_tokens=40),
    "few groups": lambda spread: run(
        spread, rewards={"few": FewMixed()}, filter=MixedOutcome(max_rounds=3), minibatches=1
    ),
    "more minibatches than groups on a process": lambda spread: run(spread, minibatches=4),
    "value model": lambda spread: run(spread, critic=ValueModel(), advantage=GAE(), update_schedule=CriticWarmUp(2)),
    "value head": lambda spread: run(spread, critic=ValueModel(trunk="joint"), advantage=GAE()),
    "light critic": lambda spread: run(spread, critic=LightCritic(width=16), advantage=LightCriticBaseline()),
    "evaluator": lambda spread: run(
        spread,
        evaluator=DualAgent(yes="1", no="0", question="?"),
        rewards={"digits": Digits(), "evaluator": EvaluatorScore()},
        update_schedule=Alternate([("evaluator", 1), ("policy", 1)]),
    ),
    "critique": lambda spread: run(
        spread,
        evaluator=DualAgent(verdict="critique", critique_tokens=5, question="?", ema=0.5),
        rewards={"digits": Digits(), "evaluator": EvaluatorScore()},
    ),
}


class StopAfter(CheckpointCallback):
    """Ends a run after its third step as if it had been killed."""

    def on_train_batch_end(self, trainer, module, *args):
        if module.rl_step == 3:
            raise Killed


class Killed(Exception):
    pass


def interrupted(folder: Path, spread: dict[str, Any]) -> None:
    """Three of five steps, a checkpoint after each, then killed."""
    try:
        run(spread, StopAfter(str(folder), every=1), aux_losses={"kl": KL(0.1)})
    except Killed:
        return
    raise AssertionError("the run was not interrupted")


def resumed(folder: Path, spread: dict[str, Any]) -> dict[str, Any]:
    """The rest of an interrupted run."""
    return run(spread, resume_from=folder, aux_losses={"kl": KL(0.1)})


def main(strategy: str, folder: Path) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    spread = {"devices": 2, "strategy": strategy}
    results: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        results[name] = scenario(spread)
        print(f"[{rank()}] {name}", flush=True)
    interrupted(folder / "killed_on_two", spread)
    results["resumed on two"] = resumed(folder / "killed_on_two", spread)
    results["from one to two"] = resumed(folder / "killed_on_one", spread)
    if rank() == 0:
        torch.save(results, folder / "results.pt")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1], Path(sys.argv[2]))
