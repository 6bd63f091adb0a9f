"""vLLM in the trainer's own program, on the same GPU."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_group_rl.engines.base import Completion, Request, RolloutEngine
from lit_group_rl.engines.checkpoint import write_checkpoint
from lit_group_rl.functional.collectives import world_size
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Problem, Recipe, RecipeError

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy

LOGPROBS_MODE = "processed_logprobs"
"""Log-probs after temperature, top_p and top_k; vLLM's default is those of the raw logits."""


MISSING = "VLLM needs the package vllm", "Run pip install 'lit-group-rl[vllm]', on a GPU"


@dataclass
class VLLM(RolloutEngine):
    """vLLM beside the trainer on one GPU (extra ``vllm``): asleep while the policy learns.

    Before a rollout it wakes up, takes the new weights and gets its cache; after it both are given up (sleep level 2).
    Weights go through a folder, on Linux in memory (/dev/shm): ``collective_rpc("reload_weights")``.  Every group is
    seeded.  One process only; with more use ``VLLMServer``.

    Written against the sources of vLLM 0.32.0 and 0.33.0, and tested with a stand-in that takes only what they take.
    It has not run on a GPU yet.
    """

    gpu_memory_utilization: float = 0.4
    """Share of the GPU's memory that vLLM may fill while it is awake."""
    max_model_len: int | None = None
    """Prompt and completion at most; null: what the model allows."""
    dtype: str = "auto"
    """Of vLLM's weights; auto: as the policy's."""
    enforce_eager: bool = False
    """No CUDA graphs: slower, starts sooner."""
    sleep: bool = True
    """Give up weights and cache while the policy learns; false: keep both."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of ``vllm.LLM``."""
    _llm: Any = field(default=None, init=False, repr=False, compare=False)
    _folder: Any = field(default=None, init=False, repr=False, compare=False)
    _asleep: bool = field(default=False, init=False, repr=False, compare=False)
    _fresh: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(0 < self.gpu_memory_utilization <= 1, self, "gpu_memory_utilization", "must lie in (0, 1]")
        require(self.max_model_len is None or self.max_model_len >= 1, self, "max_model_len", "must be at least 1")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if importlib.util.find_spec("vllm") is None:
            yield Problem(recipe.place(self), *MISSING)

    def start(self, policy: HFPolicy) -> None:
        if world_size() > 1:
            raise RecipeError(
                "model.sampler.engine: VLLM serves one process, this run has several. "
                "Use VLLMServer, or --trainer.devices=1"
            )
        if self._llm is None:
            if importlib.util.find_spec("vllm") is None:
                raise RecipeError(f"model.sampler.engine: {MISSING[0]}. {MISSING[1]}")
            import vllm

            # of memory where there is such a place: weights go through it before every rollout
            shared = Path("/dev/shm")
            self._folder = tempfile.TemporaryDirectory(prefix="lit-group-rl-", dir=shared if shared.is_dir() else None)
            write_checkpoint(policy, Path(self._folder.name))
            given = {
                "model": self._folder.name,
                "dtype": self.dtype,
                "gpu_memory_utilization": self.gpu_memory_utilization,
                "max_model_len": self.max_model_len,
                "enforce_eager": self.enforce_eager,
                "enable_sleep_mode": self.sleep,
                "logprobs_mode": LOGPROBS_MODE,
                "trust_remote_code": policy.trust_remote_code,
            }
            self._llm = vllm.LLM(**(given | dict(self.options)))
            self._fresh = True
        elif self._asleep:
            self._llm.wake_up(tags=["weights"])

    def update_weights(self, policy: HFPolicy) -> None:
        if self._fresh:
            self._fresh = False
        else:
            write_checkpoint(policy, Path(self._folder.name))
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": self._folder.name})
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        self._llm.reset_prefix_cache()

    def pause(self) -> None:
        if self._llm is not None and self.sleep and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def generate(self, policy: HFPolicy, request: Request) -> list[Completion]:
        import vllm

        copies = 1 if request.temperature == 0 else request.copies  # vLLM takes n > 1 for drawing only
        common = sampling_options(policy.eos_ids, request)
        params = [
            vllm.SamplingParams(n=copies, seed=request.keys[i * request.copies] % 2**62, **common)
            for i in range(len(request.prompts))
        ]
        prompts = [{"prompt_token_ids": list(p)} for p in request.prompts]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        groups = [[_completion(o) for o in output.outputs] for output in outputs]
        return [c for group in groups for c in group * (request.copies // copies)]


def sampling_options(eos_ids: list[int], request: Request) -> dict[str, Any]:
    """What ``SamplingParams`` and the completions route of the server call by the same names."""
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "max_tokens": request.max_new_tokens,
        "stop_token_ids": list(eos_ids),
        "stop": list(request.stops),
        "include_stop_str_in_output": True,
        "logprobs": 0,  # that of the drawn token alone
        "skip_special_tokens": False,
    }


def finished(reason: str | None) -> bool:
    """Whether a completion came to its end.  Raises RuntimeError where vLLM broke it off."""
    if reason not in ("stop", "length"):
        raise RuntimeError(f"model.sampler.engine: vLLM broke a completion off ({reason})")
    return reason == "stop"


def _completion(output: Any) -> Completion:
    ids = list(output.token_ids)
    logp = [position[token].logprob for token, position in zip(ids, output.logprobs, strict=True)]
    return Completion(ids, logp, not finished(output.finish_reason))
