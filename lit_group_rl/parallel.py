"""Everything that knows how the work is spread over processes: sharding, gathered weights, gradient sync."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from lit_group_rl.functional.collectives import rank
from lit_group_rl.scoring import CausalNet

SMALL_MODEL = 2_000_000
"""Parameters; of 7 million two threads make 1.5 of one."""


class FSDP2Strategy(ModelParallelStrategy):
    """Fully sharded data parallelism over every process, as ``trainer.strategy: fsdp2``.

    Lightning's ModelParallelStrategy means tensor parallelism unless told otherwise.  ``fsdp`` (the first version)
    cannot run under manual optimisation.
    """

    strategy_name = "fsdp2"

    def __init__(
        self,
        compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        reduce_dtype: Literal["float32", "bfloat16"] = "float32",
        cpu_offload: bool = False,
        timeout_seconds: int = 1800,
    ) -> None:
        """Weights, gradients and optimizer stay in the policy's own dtype, whatever is computed with.

        Args:
            compute_dtype: Of the gathered weights and the activations; leave trainer.precision at 32.
            reduce_dtype: In which gradients are added up.
            cpu_offload: Keep the shards in host memory; the optimizer then runs there.
            timeout_seconds: A collective that waits longer fails; must exceed the slowest rollout's lead.
        """
        super().__init__(
            data_parallel_size=1,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            # gradients that live in host memory have their norm exchanged there
            process_group_backend="cpu:gloo,cuda:nccl" if cpu_offload and torch.cuda.is_available() else None,
            timeout=timedelta(seconds=timeout_seconds),
        )
        self.compute_dtype, self.reduce_dtype, self.cpu_offload = compute_dtype, reduce_dtype, cpu_offload

    def shard(self, net: nn.Module) -> None:
        """Shard one model over all processes, in place."""
        compute = getattr(torch, self.compute_dtype)
        own = next(net.parameters()).dtype
        precision = MixedPrecisionPolicy(
            param_dtype=None if compute == own else compute, reduce_dtype=getattr(torch, self.reduce_dtype)
        )
        offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if self.cpu_offload else OffloadPolicy()
        shard(net, self.device_mesh["data_parallel"], precision, offload)

    def setup_environment(self) -> None:
        """Shard over all processes of all nodes."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


if "fsdp2" not in StrategyRegistry:
    StrategyRegistry.register("fsdp2", FSDP2Strategy, description="FSDP2 over all processes")


def shard(net: nn.Module, mesh: Any, precision: MixedPrecisionPolicy, offload: OffloadPolicy) -> None:
    """Shard every decoder layer (transformers names the class) and the rest, in place.

    A frozen language model inside an auxiliary model stays whole on every process: what it writes ends anywhere.
    """
    inner = {name: m for name, m in net.named_children() if not isinstance(net, CausalNet) and _writes(m)}
    for name in inner:
        del net._modules[name]
    names = {n for m in net.modules() for n in (getattr(m, "_no_split_modules", None) or ())}
    # the root keeps its own parameters gathered by default; then later updates would mix plain and sharded tensors
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": True}
    options |= {"mp_policy": precision, "offload_policy": offload}
    for module in [*net.modules()]:
        if type(module).__name__ in names:
            fully_shard(module, **options)
    fully_shard(net, **options)
    net._modules.update(inner)


def _writes(module: nn.Module) -> bool:
    return hasattr(module, "generation_config") and not any(p.requires_grad for p in module.parameters())


def is_sharded(net: nn.Module | None) -> bool:
    """Whether any part of it is sharded."""
    return net is not None and any(isinstance(m, FSDPModule) for m in net.modules())


@contextmanager
def unsharded(root: nn.Module | None) -> Iterator[None]:
    """Hold whole weights on every process, so that processes need not stay in step.  Entering is a collective.

    Nothing may be written to the weights.
    """
    if not isinstance(root, FSDPModule):
        yield
        return
    parts = [m for m in root.modules() if isinstance(m, FSDPModule)]
    root._get_fsdp_state()._lazy_init()  # otherwise the first inner forward would take itself for the root
    for part in parts:
        part.unshard()
    root.set_reshard_after_forward(False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def prepare_ddp(strategy: Any, several_models: bool) -> None:
    """Models that learn in turns leave parameters without a gradient, for which DDP would wait."""
    if isinstance(strategy, DDPStrategy) and several_models:
        strategy._ddp_kwargs.setdefault("find_unused_parameters", True)


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


def full_state(module: nn.Module) -> dict[str, Any]:
    """Whole weights on the CPU; empty but on the first process when sharded.  A collective."""
    if is_sharded(module):
        return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {k: v.detach().cpu() for k, v in module.state_dict().items()}


def load_full_state(module: nn.Module, state: dict[str, Any]) -> None:
    """Put whole weights, known to every process, back."""
    if is_sharded(module):
        set_model_state_dict(module, state, options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(state)


def full_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's memory by parameter name, whole, on the CPU; empty but on the first process.  A collective.

    torch's own collector makes a step to fill an empty memory, and the run would no longer be the one without a save.
    """
    names = {p: n for n, p in module.named_parameters()}
    state = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            held = {k: _on_cpu(v) for k, v in optimizer.state.get(p, {}).items()}
            if held and rank() == 0:
                state[names[p]] = held
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return {"state": state, "groups": groups, "defaults": dict(optimizer.defaults)}


def load_full_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put an optimizer's memory back.  Options that differ from the saved run's stay as they are now given."""
    names = {p: n for n, p in module.named_parameters()}
    optimizer.state.clear()
    for group, old in zip(optimizer.param_groups, saved["groups"], strict=True):
        for p in group["params"]:
            if names[p] in saved["state"]:
                optimizer.state[p] = {k: _like(v, p) for k, v in saved["state"][names[p]].items()}
        if dict(optimizer.defaults) == saved["defaults"]:
            group.update(old)


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return whole(value).detach().to("cpu", copy=True)


def _like(value: Any, parameter: nn.Parameter) -> Any:
    """A saved value as the optimizer holds it beside this parameter: spread alike, or small and where it was."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or value.dim() == 0:
        return value.clone() if isinstance(value, Tensor) else value
    if isinstance(parameter, DTensor):
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value.to(parameter.device, copy=True)


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


def suit_threads(net: nn.Module) -> int:
    """One thread for a small model on a CPU, unless OMP_NUM_THREADS says otherwise; the number there was before.

    Its products take microseconds, after each of which the threads wait for one another: two are a tenth faster than
    one on a machine that does nothing else, and two to fifteen times slower beside another busy process.
    """
    before = torch.get_num_threads()
    on_cpu = next(net.parameters()).device.type == "cpu" and not torch.accelerator.is_available()
    if on_cpu and "OMP_NUM_THREADS" not in os.environ and sum(p.numel() for p in net.parameters()) < SMALL_MODEL:
        torch.set_num_threads(1)
    return before
