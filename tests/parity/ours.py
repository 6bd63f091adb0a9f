"""The loss of a recipe of this package on given numbers, through the module that trains it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from lit_group_rl.batching import counts
from lit_group_rl.cli.lightning_cli import build
from lit_group_rl.cli.run import prepare
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.module import LitGroupRL
from lit_group_rl.types import RolloutBatch


@cache
def module(recipe: str, *options: str) -> LitGroupRL:
    """The recipe as the command line builds it."""
    return build(prepare([recipe, *options])).model


class Given(nn.Module):
    """A policy whose log-probs are given, row by row."""

    packs = False

    def __init__(self, logp: Tensor, entropy: Tensor | None) -> None:
        super().__init__()
        self.logp, self.entropy = logp, entropy

    def score(self, batch: RolloutBatch, entropy: bool = False, hidden: bool = False) -> SimpleNamespace:
        rows, width = batch.row_ids, batch.mask.shape[1]
        chosen = self.entropy[rows, :width] if entropy else None
        return SimpleNamespace(logp=self.logp[rows, :width], entropy=chosen, hidden=None)


def loss(
    batch: RolloutBatch, logp: Tensor, recipe: str, *options: str, cuts=None, entropy: Tensor | None = None
) -> Tensor:
    """The whole loss of one update; ``cuts`` are the rows of its micro-batches, default one."""
    trained = module(recipe, *options)
    trained.policy = Given(logp, entropy)
    auxes = trained.aux_losses
    total, *aux_counts = counts([batch.mask, *(a.selection(batch) for a in auxes.values())], batch.group_ids)
    if any(part.whole_minibatch for part in trained.loss_weights.values()):
        trained._observe(batch, total, MetricBag())
    parts = [torch.arange(len(batch))] if cuts is None else [torch.tensor(rows) for rows in cuts]
    named = dict(zip(auxes, aux_counts, strict=True))
    losses = [trained.total_loss(batch.rows(rows), total, named, 1 / len(parts), MetricBag()) for rows in parts]
    return torch.stack(losses).sum()
