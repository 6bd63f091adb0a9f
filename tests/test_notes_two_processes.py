"""Statistics of the step are those of all processes: two of them, groups shared out, give what one gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lit_group_rl.advantages import BetweenGroup, GroupRelative, NoisyAdvantage, WinsorisedAdvantage
from lit_group_rl.aux_losses import GroupSupervised
from lit_group_rl.clip_policies import DynamicQuantileClip, DynamicZScoreClip
from lit_group_rl.loss_weights import GaussianNoise, GroupWeight
from lit_group_rl.ratios import NoisyRatio, TokenRatio
from lit_group_rl.schedules import Clock
from lit_group_rl.types import RolloutBatch
from tests.builders import make_batch

ROLLOUTS = (
    [1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0, 0.25, 0.75],
    [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 1.0, 0.25, 0.0],
)
IDS = [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
QUALITY = [0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.4, 0.4, 0.6, 0.6]


def whole(scores: list[float]) -> RolloutBatch:
    return make_batch(scores=scores, group_ids=IDS, rewards={"q": QUALITY})


def results(shares: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Row id -> all that the components say of the row in two rollouts, for the rows of this process."""
    estimators = [
        BetweenGroup(GroupRelative(), "q"),
        WinsorisedAdvantage(GroupRelative(), k=1.0),
        NoisyAdvantage(GroupRelative(), 0.2),
    ]
    clips = [DynamicZScoreClip(), DynamicQuantileClip(), DynamicQuantileClip(decay=0.5)]
    others = [
        GroupSupervised("q", standardise=True),
        GroupWeight("q"),
        GaussianNoise(0.2),
        NoisyRatio(TokenRatio(), 0.2),
    ]
    columns: list[torch.Tensor] = []
    for step, (scores, share) in enumerate(zip(ROLLOUTS, shares, strict=True)):
        clock = Clock(step, 2)
        for estimator in estimators:
            batch = whole(scores).rows(share)
            batch.advantages = estimator.estimate(batch).values
            estimator.prepare(batch, clock)
            columns.append(batch.advantages[:, 0])
        for part in [*clips, *others]:
            batch = whole(scores).rows(share)
            batch.advantages = GroupRelative().estimate(batch).values
            part.prepare(batch, clock)
            columns += batch.features.values()
    half = len(columns) // 2
    table: dict[int, torch.Tensor] = {}
    for step, share in enumerate(shares):
        part = torch.stack([c.double() for c in columns[step * half : (step + 1) * half]], 1)
        for row, values in zip(share.tolist(), part, strict=True):
            table[100 * step + row] = values
    return table


def one_of_two(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    # unequal shares, and a rollout of which the second process has nothing
    first = torch.arange(6) if rank == 0 else torch.arange(6, 10)
    second = torch.arange(10) if rank == 0 else torch.arange(0)
    torch.save(results([first, second]), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    shared = torch.load(tmp_path / "0.pt") | torch.load(tmp_path / "1.pt")
    alone = results([torch.arange(10)] * 2)
    assert shared.keys() == alone.keys()
    for row, values in alone.items():
        torch.testing.assert_close(shared[row], values, msg=lambda m, row=row: f"row {row}: {m}")
