"""Everything that knows how the work is spread over processes: sharding, gathered weights, gradient sync."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard


class FSDP2Strategy(ModelParallelStrategy):
    """Fully sharded data parallelism over every process, as ``trainer.strategy: fsdp2``.

    Lightning's ModelParallelStrategy means tensor parallelism unless told otherwise.  ``fsdp`` (the first version)
    cannot run under manual optimisation.
    """

    strategy_name = "fsdp2"

    def __init__(self, timeout_seconds: int = 1800) -> None:
        """``timeout_seconds``: a collective that waits longer fails; must exceed the slowest rollout's lead."""
        super().__init__(
            data_parallel_size=1,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timedelta(seconds=timeout_seconds),
        )

    def setup_environment(self) -> None:
        """Shard over all processes of all nodes."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


if "fsdp2" not in StrategyRegistry:
    StrategyRegistry.register("fsdp2", FSDP2Strategy, description="FSDP2 over all processes")


def shard(net: nn.Module, mesh: Any) -> None:
    """Shard every decoder layer (transformers names the class) and the rest, in place."""
    names = {n for m in net.modules() for n in (getattr(m, "_no_split_modules", None) or ())}
    for module in net.modules():
        if type(module).__name__ in names:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
    # the root keeps its own parameters gathered by default; then later updates would mix plain and sharded tensors
    fully_shard(net, mesh=mesh, reshard_after_forward=True)


def is_sharded(net: nn.Module | None) -> bool:
    """Whether any part of it is sharded."""
    return net is not None and any(isinstance(m, FSDPModule) for m in net.modules())


@contextmanager
def unsharded(*nets: nn.Module | None) -> Iterator[None]:
    """Hold whole weights on every process, so that processes need not stay in step.  Entering is a collective."""
    roots = [net for net in nets if isinstance(net, FSDPModule)]
    parts = [m for root in roots for m in root.modules() if isinstance(m, FSDPModule)]
    for root in roots:
        root._get_fsdp_state()._lazy_init()  # otherwise the first inner forward would take itself for the root
    for part in parts:
        part.unshard()
    for root in roots:
        root.set_reshard_after_forward(False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


@contextmanager
def gradient_sync(strategy: Any, nets: list[nn.Module], last: bool) -> Iterator[None]:
    """Exchange gradients only in the last backward of an update."""
    for net in nets:
        if isinstance(net, FSDPModule):
            net.set_requires_gradient_sync(last)
            net.set_reshard_after_backward(last)
    hold = isinstance(strategy, DDPStrategy) and not last
    with strategy.model.no_sync() if hold else nullcontext():
        yield


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Whole weights on the CPU; empty but on the first process when sharded.  A collective."""
    if is_sharded(module):
        return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {k: v.detach().cpu() for k, v in module.state_dict().items()}


def load_full_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Put whole weights, known to every process, back."""
    if is_sharded(module):
        set_model_state_dict(module, state, options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(state)


def whole(value: Tensor) -> Tensor:
    """A sharded scalar (a norm) as a plain tensor."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def clip_gradients(parameters: list[nn.Parameter], max_norm: float | None) -> float:
    """Norm of the gradients before clipping; with ``max_norm`` they are scaled down to it."""
    with_grad = [p for p in parameters if p.grad is not None]
    if not with_grad:
        return 0.0
    limit = max_norm if max_norm is not None else float("inf")
    return float(whole(torch.nn.utils.clip_grad_norm_(with_grad, limit)))
