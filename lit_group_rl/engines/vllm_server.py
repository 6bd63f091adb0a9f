"""A vLLM server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lit_group_rl.engines.base import Completion, Request, RolloutEngine
from lit_group_rl.engines.checkpoint import write_checkpoint
from lit_group_rl.engines.vllm import LOGPROBS_MODE, finished, sampling_options
from lit_group_rl.functional.collectives import all_sum, rank
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Problem, Recipe, RecipeError

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass
class VLLMServer(RolloutEngine):
    """A vLLM server on other GPUs; the trainer needs no vLLM.

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs

    The first process writes the weights into ``folder``, which the server sees under the same path, and has it read
    them (``/collective_rpc``, ``reload_weights``) and forget its prefix cache; then every process asks
    ``/v1/completions``, token ids in, token ids and log-probs out.  Development mode lets everybody who reaches the
    server change it: keep it in a closed network.  Of several processes each needs a held-out prompt, since all wait
    for the weights together.

    Written against the sources of vLLM 0.32.0 and 0.33.0, and tested with a stand-in server that takes only what they
    take.  It has not run against a real server yet.
    """

    base_url: str
    """E.g. http://localhost:8000, without /v1."""
    folder: str
    """Where weights are handed over; seen by trainer and server alike."""
    model: str | None = None
    """Name under which the server offers the model; null: the only one it has."""
    parallel: int = 64
    """Requests under way at a time, one per prompt."""
    seconds: float = 600.0
    """Longest wait for an answer."""
    _name: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.base_url.startswith(("http://", "https://")), self, "base_url", "must begin with http://")
        require(not self.base_url.rstrip("/").endswith("/v1"), self, "base_url", "must be given without /v1")
        require(Path(self.folder).is_absolute(), self, "folder", "must be an absolute path, the same for the server")
        require(self.parallel >= 1, self, "parallel", "must be at least 1")
        require(self.seconds > 0, self, "seconds", "must be above 0")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield Problem(
            recipe.place(self),
            f"log-probs are right only if the server was started with --logprobs-mode {LOGPROBS_MODE}",
            "mismatch/abs_mean above about 0.1 says that it was not",
            warning=True,
        )

    def start(self, policy: HFPolicy) -> None:
        if not self._name:
            offered = [m["id"] for m in self._ask("/v1/models")["data"]]
            if self.model is None and len(offered) != 1:
                raise RecipeError(
                    f"model.sampler.engine.model: the server offers {', '.join(offered) or 'no model'}. Name one"
                )
            if self.model is not None and self.model not in offered:
                raise RecipeError(
                    f"model.sampler.engine.model: the server has no {self.model!r}. It offers: {', '.join(offered)}"
                )
            self._name = self.model or offered[0]

    def update_weights(self, policy: HFPolicy) -> None:
        if rank() == 0:
            write_checkpoint(policy, Path(self.folder))
            self._ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": self.folder}})
            self._ask("/reset_prefix_cache", {})
        all_sum(torch.ones((), device=policy.device))  # the others wait for the new weights

    def generate(self, policy: HFPolicy, request: Request) -> list[Completion]:
        copies = 1 if request.temperature == 0 else request.copies  # vLLM takes n > 1 for drawing only
        common = sampling_options(policy.eos_ids, request) | {
            "model": self._name,
            "n": copies,
            "return_token_ids": True,
        }

        def group(i: int) -> list[Completion]:
            seed = request.keys[i * request.copies] % 2**62
            answer = self._ask("/v1/completions", common | {"prompt": list(request.prompts[i]), "seed": seed})
            choices = sorted(answer["choices"], key=lambda c: int(c["index"]))
            return [_completion(c) for c in choices] * (request.copies // copies)

        with ThreadPoolExecutor(min(self.parallel, len(request.prompts))) as pool:
            return [c for some in pool.map(group, range(len(request.prompts))) for c in some]

    def _ask(self, route: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON; GET without a body, POST with one."""
        url = self.base_url.rstrip("/") + route
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(call, timeout=self.seconds) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")[:300]
            fix = "Start the server with VLLM_SERVER_DEV_MODE=1" if error.code == 404 else told
            raise RecipeError(f"model.sampler.engine: {url} answered {error.code}. {fix}") from error
        except (urllib.error.URLError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise RecipeError(
                f"model.sampler.engine.base_url: {url} cannot be reached ({reason}). Start the server first: "
                f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode {LOGPROBS_MODE}"
            ) from error
        return json.loads(text) if text.strip() else None


def _completion(choice: dict[str, Any]) -> Completion:
    return Completion(
        list(choice["token_ids"]), list(choice["logprobs"]["token_logprobs"]), not finished(choice["finish_reason"])
    )
