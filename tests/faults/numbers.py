"""Numbers that are not finite, put into a run at random places: no checkpoint may hold one, no run may end unexplained.

python -m tests.faults.numbers [--places 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lit_group_rl import checkpoint
from lit_group_rl.advantages import GAE
from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.critics import ValueModel
from lit_group_rl.scoring import TokenScores
from tests.tiny_runs import Digits, fit

STEPS = 6
KINDS = ("loss", "gradient", "advantage", "reward", "logp", "behaviour logp", "weight", "optimizer", "critic", "return")
"""What is spoilt; the last two in a run with a critic."""


@dataclass(frozen=True)
class Place:
    """One injection."""

    kind: str
    step: int
    value: float
    lasting: bool
    """In every step from then on, not in one."""
    at: float
    """Which element, as a share of all."""


def places(count: int, seed: int) -> list[Place]:
    """Random places, every kind equally often."""
    rng = random.Random(seed)
    values = (math.nan, math.inf, -math.inf)
    return [
        Place(KINDS[i % len(KINDS)], rng.randint(1, STEPS - 1), rng.choice(values), rng.random() < 0.3, rng.random())
        for i in range(count)
    ]


class Inject(RunCallback):
    """Spoils one number in the steps that the place names."""

    def __init__(self, place: Place) -> None:
        self.place, self.done = place, 0

    def due(self, module: Any) -> bool:
        """Whether to do it now; a place that does not last is used once."""
        here = module.rl_step + 1 >= self.place.step if self.place.lasting else not self.done
        here = here and module.rl_step + 1 >= self.place.step
        self.done += here
        return here

    def spoil(self, values: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Put the value at the place, under the mask if there is one."""
        flat = values.view(-1)
        places = torch.arange(flat.numel()) if mask is None else mask.reshape(-1).nonzero().squeeze(1)
        if len(places):
            flat[places[int(self.place.at * len(places))]] = self.place.value

    def on_train_start(self, trainer: Any, module: Any) -> None:
        kind = self.place.kind
        if kind == "loss":
            self.after(module, "total_loss", lambda loss: loss * self.place.value)
        elif kind == "gradient":
            learning = some(module.policy.net, self.place)
            self.before(module, "on_before_optimizer_step", lambda: self.spoil(learning.grad))
        elif kind in ("advantage", "return"):
            name = "advantages" if kind == "advantage" else "returns"
            self.spoil_batch(module, "judge", name)
        elif kind == "behaviour logp":
            self.spoil_batch(module, "judge", "old_logp")
        elif kind == "reward":
            reward = next(iter(module.rewards.values()))
            self.after(reward, "score", lambda scores: [self.place.value, *scores[1:]], module)
        elif kind == "logp":
            self.after(module.policy, "score", self.spoilt_scores, module)
        else:
            self.before(module, "step", lambda: self.spoil_state(kind, module))

    def after(self, owner: Any, name: str, change: Callable[[Any], Any], module: Any = None) -> None:
        plain = getattr(owner, name)

        def changed(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            return change(result) if self.due(module or owner) else result

        object.__setattr__(owner, name, changed)

    def before(self, module: Any, name: str, change: Callable[[], None]) -> None:
        plain = getattr(module, name)

        def changed(*args: Any, **kwargs: Any) -> Any:
            if self.due(module):
                change()
            return plain(*args, **kwargs)

        object.__setattr__(module, name, changed)

    def spoil_batch(self, module: Any, name: str, field: str) -> None:
        plain = getattr(module, name)

        def changed(batch: Any, bag: Any) -> Any:
            plain(batch, bag)
            if self.due(module):
                setattr(batch, field, getattr(batch, field).clone())
                self.spoil(getattr(batch, field), batch.mask)

        object.__setattr__(module, name, changed)

    def spoilt_scores(self, scores: TokenScores) -> TokenScores:
        extra = torch.zeros_like(scores.logp)
        self.spoil(extra, scores.logp != 0)
        return TokenScores(scores.logp + extra, scores.entropy, scores.hidden)

    @torch.no_grad()
    def spoil_state(self, kind: str, module: Any) -> None:
        net = module.models["critic"] if kind == "critic" else module.policy.net
        parameter = some(net, self.place)
        if kind == "optimizer":
            state = module.trainer.optimizers[0].state.get(parameter)
            if state:
                self.spoil(state["exp_avg" if self.place.at < 0.5 else "exp_avg_sq"])
        else:
            self.spoil(parameter.data)


def some(net: Any, place: Place) -> Any:
    """One of the parameters that learn."""
    learning = [p for p in net.parameters() if p.requires_grad]
    return learning[int(place.at * len(learning))]


def numbers(value: Any) -> Iterator[float]:
    """Every number of a checkpoint, of a tensor the sum that shows whether all are finite."""
    if isinstance(value, torch.Tensor):
        yield float(torch.isfinite(value).all()) or math.nan
    elif isinstance(value, float):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from numbers(inner)


def one(place: Place, folder: Path) -> tuple[str, int, int]:
    """How a run with this place ends, and how many of its checkpoints are good and not finite."""
    inject, keep = Inject(place), CheckpointCallback(str(folder), every=1, keep=STEPS)
    parts: dict[str, Any] = {"rewards": {"digits": Digits()}}
    if place.kind in ("critic", "return"):
        parts |= {"critic": ValueModel(), "advantage": GAE()}
    else:
        parts["aux_losses"] = {"kl": KL(0.1)}
    try:
        module, _ = fit(steps=STEPS, callbacks=[keep, inject], **parts)
        ending = "finished" if module.rl_step == STEPS else f"ended after {module.rl_step} steps"
    except Exception as error:
        explained = getattr(error, "exit_code", None) == 3
        ending = f"stopped: {type(error).__name__}" if explained else f"UNEXPLAINED {type(error).__name__}: {error}"
    kept = [checkpoint.read(path) for path in sorted((folder / "checkpoints").glob("step_*"))]
    bad = sum(not all(map(math.isfinite, numbers([c.weights, c.state]))) for c in kept)
    return ending, len(kept), bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    endings: Counter[str] = Counter()
    kept = spoilt = 0
    for place in places(options.places, options.seed):
        with tempfile.TemporaryDirectory() as folder:
            ending, good, bad = one(place, Path(folder))
        told = vars(place) | {"value": str(place.value), "ending": ending, "bad": bad}
        print(json.dumps(told), file=sys.stderr)
        endings[ending] += 1
        kept, spoilt = kept + good, spoilt + bad
    print(json.dumps({"places": options.places, "endings": endings, "checkpoints": kept, "not_finite": spoilt}))
    explained = all(e == "finished" or e.startswith("stopped") for e in endings)
    return int(spoilt > 0 or not explained)


if __name__ == "__main__":
    sys.exit(main())
