"""The policy's weights as a folder, for engines that read them from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


def write_checkpoint(policy: HFPolicy, folder: Path) -> None:
    """A plain Hugging Face folder, LoRA merged in; whatever was in it is written over.

    Called where whole weights are held.  They are read from the parameters: the state dict of a sharded model would
    share them out again.
    """
    assert policy.net is not None
    state: dict[str, Tensor] = {name: p.detach() for name, p in policy.net.named_parameters()}
    policy.save(folder, state)
