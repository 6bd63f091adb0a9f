"""A run without a trainer: what the callbacks ask of one, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lit_group_rl.types import POLICY, RolloutBatch, Sample


def rollout(groups: dict[str, list[tuple[str, float]]], *, answer: str = "77", truncated: set[str] = frozenset()):
    """One RL step: prompt -> (completion, score) of each member.  Lengths are 1, 2, 3, 1, 2, 3, ... tokens."""
    rows = [(prompt, text, score) for prompt, members in groups.items() for text, score in members]
    lengths = torch.tensor([1 + i % 3 for i in range(len(rows))])
    mask = torch.arange(3) < lengths[:, None]
    scores = torch.tensor([score for *_, score in rows], dtype=torch.float64)
    ids = {prompt: i for i, prompt in enumerate(groups)}
    return RolloutBatch(
        prompt_ids=torch.zeros(len(rows), 1, dtype=torch.long),
        prompt_mask=torch.ones(len(rows), 1, dtype=torch.bool),
        completion_ids=torch.zeros(len(rows), 3, dtype=torch.long),
        completion_mask=mask,
        mask=mask,
        group_ids=torch.tensor([ids[prompt] for prompt, *_ in rows], dtype=torch.long),
        row_ids=torch.arange(len(rows)),
        truncated=torch.tensor([text in truncated for _, text, _ in rows]),
        temperature=1.0,
        behaviour_logp=torch.zeros(len(rows), 3),
        samples=[
            Sample(prompt, text, answer, {}, int(n), text in truncated)
            for (prompt, text, _), n in zip(rows, lengths, strict=True)
        ],
        row_role=torch.full((len(rows),), POLICY),
        rewards={"exact": scores},
        scores=scores,
        solved=scores >= 1,
        advantages=torch.where(mask, (2 * scores - 1)[:, None], 9.0),
    )


@pytest.fixture
def make_rollout():
    return rollout


@pytest.fixture
def module():
    model = torch.nn.Linear(2, 1)
    model.rl_step, model.steps, model.seed, model.device, model.last_batch = 0, 100, 1, torch.device("cpu"), None
    return model


@pytest.fixture
def trainer(tmp_path):
    return SimpleNamespace(
        is_global_zero=True,
        loggers=[],
        default_root_dir=str(tmp_path),
        datamodule=SimpleNamespace(heldout_size=256, prompts_per_step=32),
    )
