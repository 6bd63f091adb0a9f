"""vLLM and its server, against stand-ins that take only what the sources of vLLM 0.32 and 0.33 take."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import threading
import types
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lit_group_rl.engines import VLLM, VLLMServer
from lit_group_rl.environments import Calculator
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt, Recipe, RecipeError

LLM_OPTIONS = {
    "model", "dtype", "gpu_memory_utilization", "max_model_len", "enforce_eager", "enable_sleep_mode", "logprobs_mode",
    "trust_remote_code", "seed",
}  # fmt: skip
"""Of vllm.LLM and EngineArgs, as far as they are used."""
SAMPLING_OPTIONS = {
    "n", "seed", "temperature", "top_p", "top_k", "max_tokens", "stop_token_ids", "stop", "include_stop_str_in_output",
    "logprobs", "skip_special_tokens",
}  # fmt: skip
"""Of vllm.SamplingParams; CompletionRequest has them all by the same names."""
ROUTE_OPTIONS = SAMPLING_OPTIONS | {"model", "prompt", "return_token_ids"}
PROMPTS = [Prompt("2+3=", "5"), Prompt("10+20=", "30")]


@pytest.fixture
def policy() -> CharPolicy:
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    return policy


def draw(policy: CharPolicy, engine: Any, **options: Any) -> Any:
    sampler = GroupSampler(group_size=2, max_new_tokens=6, engine=engine, **options)
    return sampler.sample(policy, PROMPTS, [0, 1], Clock(0, 1), 1)


def said(prompt: list[int], member: int, limit: int, ids_of: Any, end: int) -> tuple[list[int], str]:
    """What the stand-ins write: '<>' first, behind a reply (or as a second member) the number of prompt tokens."""
    text = "<>" if member == 0 and prompt[-1] == ids_of("=")[0] else str(len(prompt))
    ids = ids_of(text) if text == "<>" else [*ids_of(text), end]
    return ids[:limit], "length" if len(ids) > limit else "stop"


def weights_in(folder: str) -> torch.Tensor:
    return load_file(Path(folder) / "model.safetensors")["model.embed_tokens.weight"]


@dataclass
class Logprob:
    logprob: float
    rank: int = 1
    decoded_token: str = ""


class StandIn:
    """vllm.LLM with its rules of sleep and waking; ``made`` holds what was made."""

    made: list[StandIn] = []

    def __init__(self, **options: Any) -> None:
        assert set(options) <= LLM_OPTIONS, set(options) - LLM_OPTIONS
        assert Path(options["model"], "config.json").is_file()
        assert Path(options["model"], "tokenizer.json").is_file()
        self.options, self.calls = options, []
        self.loaded = weights_in(options["model"])
        self.awake = {"weights", "kv_cache"}
        self.stale_cache = False
        StandIn.made.append(self)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        assert self.options["enable_sleep_mode"]
        self.calls.append(f"sleep {level}")
        self.awake, self.loaded = set(), None  # level 2 keeps no weights

    def wake_up(self, tags: list[str] | None = None) -> bool:
        assert tags is not None
        assert set(tags) <= {"weights", "kv_cache", "scheduling"}
        self.calls.append(f"wake {' '.join(tags)}")
        self.awake |= set(tags)
        return self.awake == {"weights", "kv_cache"}

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple = (), kwargs: Any = None) -> list:
        assert (method, args, set(kwargs)) == ("reload_weights", (), {"weights_path"})
        assert "weights" in self.awake, "there is no memory to load them into"
        self.calls.append("reload")
        self.loaded, self.stale_cache = weights_in(kwargs["weights_path"]), True
        return [None]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.stale_cache = False
        return True

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool = True) -> list[Any]:
        assert self.awake == {"weights", "kv_cache"}
        assert self.loaded is not None
        assert not self.stale_cache
        assert not use_tqdm
        self.calls.append("generate")
        self.params = sampling_params
        return [self._output(p, s) for p, s in zip(prompts, sampling_params, strict=True)]

    def _output(self, prompt: dict[str, list[int]], params: Any) -> Any:
        assert set(prompt) == {"prompt_token_ids"}
        assert params.n == 1 or params.temperature > 0, "vLLM refuses n > 1 for greedy"
        outputs = []
        for member in range(params.n):
            ids, reason = said(prompt["prompt_token_ids"], member, params.max_tokens, self.ids_of, self.end)
            logprobs = [{i: Logprob(-0.5), 999: Logprob(-9.0)} for i in ids]
            outputs.append(types.SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason))
        return types.SimpleNamespace(outputs=outputs)


class Params(types.SimpleNamespace):
    def __init__(self, **options: Any) -> None:
        assert set(options) <= SAMPLING_OPTIONS, set(options) - SAMPLING_OPTIONS
        super().__init__(**options)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, policy: CharPolicy) -> types.ModuleType:
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    StandIn.made = []
    StandIn.ids_of = staticmethod(lambda text: policy.tokenizer(text).input_ids)
    StandIn.end = policy.tokenizer.eos_token_id
    module.LLM, module.SamplingParams = StandIn, Params
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


def change(policy: CharPolicy) -> None:
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.add_(1.0)


def test_vllm_draws_with_the_present_weights_and_sleeps_between(vllm, policy):
    engine = VLLM(gpu_memory_utilization=0.3, max_model_len=64, options={"seed": 3})
    batch = draw(policy, engine, temperature=0.7, top_p=0.9, top_k=5)
    # 2+3= is 4 tokens, 10+20= is 6; the second member says how many there were
    assert [s.completion for s in batch.samples] == ["<>", "4", "<>", "6"]
    assert batch.behaviour_logp[batch.mask].unique().tolist() == [-0.5]
    assert batch.truncated.tolist() == [False] * 4
    assert not batch.exact_logp
    (llm,) = StandIn.made
    assert llm.options["logprobs_mode"] == "processed_logprobs"
    assert (llm.options["gpu_memory_utilization"], llm.options["max_model_len"], llm.options["seed"]) == (0.3, 64, 3)
    first, second = llm.params
    assert (first.temperature, first.top_p, first.top_k, first.n, first.max_tokens) == (0.7, 0.9, 5, 2, 6)
    assert first.stop_token_ids == policy.eos_ids
    assert first.logprobs == 0
    assert 0 <= first.seed != second.seed < 2**62

    change(policy)
    draw(policy, engine)
    assert len(StandIn.made) == 1
    # new weights before the cache: both beside the trainer's would be too much
    assert llm.calls == ["generate", "sleep 2", "wake weights", "reload", "wake kv_cache", "generate", "sleep 2"]
    folder = llm.options["model"]
    assert torch.equal(weights_in(folder), policy.model.get_input_embeddings().weight.detach())


def test_vllm_can_stay_awake(vllm, policy):
    engine = VLLM(sleep=False)
    draw(policy, engine)
    change(policy)
    draw(policy, engine)
    (llm,) = StandIn.made
    assert llm.calls == ["generate", "reload", "generate"]
    assert torch.equal(llm.loaded, policy.model.get_input_embeddings().weight.detach())
    assert llm.options["enable_sleep_mode"] is False


def test_vllm_plays_with_an_environment_and_greedily(vllm, policy):
    engine = VLLM()
    batch = draw(policy, engine, environment=Calculator())
    # <> 5, then the number of tokens before: 2+3=<>5 is 7, and 10+20=<>30 is 10
    assert [s.completion for s in batch.samples] == ["<>57", "4", "<>3010", "6"]
    assert batch.written[2].int().tolist() == [1, 1, 0, 0, 1, 1, 1]
    assert StandIn.made[0].calls == ["generate", "generate", "sleep 2"]
    short = GroupSampler(max_new_tokens=1, engine=engine)
    greedy = short.draw(policy, PROMPTS, copies=2, keys=[0] * 4, temperature=0.0)
    assert StandIn.made[0].params[0].n == 1
    assert greedy.ids.shape == (4, 1)
    assert greedy.truncated.tolist() == [True] * 4  # '<>' needs two


def test_a_completion_that_vllm_breaks_off_is_no_completion(vllm, policy, monkeypatch):
    whole = StandIn._output

    def aborted(self, prompt, params):
        output = whole(self, prompt, params)
        output.outputs[0].finish_reason = "abort"
        return output

    monkeypatch.setattr(StandIn, "_output", aborted)
    with pytest.raises(RuntimeError, match=r"broke a completion off \(abort\)"):
        draw(policy, VLLM())
    assert StandIn.made[0].calls[-1] == "sleep 2"


def test_without_the_package_the_recipe_is_refused(policy):
    recipe = Recipe({"sampler": GroupSampler(engine=VLLM())}, 4, 4, 1)
    told = [str(p) for _, part in recipe.components() for p in part.checks(recipe) if not p.warning]
    assert told == ["model.sampler.engine: VLLM needs the package vllm. Run pip install 'lit-group-rl[vllm]', on a GPU"]
    with pytest.raises(RecipeError, match="needs the package vllm"):
        draw(policy, VLLM())


# ---- the server


class Server(ThreadingHTTPServer):
    """A vLLM server as far as it is asked; keeps the requests."""

    def __init__(self, policy: CharPolicy) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.policy, self.requests, self.models = policy, [], ["the-model"]
        self.loaded: Any = None
        self.development = True
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self._answer({"object": "list", "data": [{"id": name} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((self.path, body))
        if self.path == "/v1/completions":
            self._answer(self._completions(body))
        elif not self.server.development:
            self.send_error(404)
        elif self.path == "/collective_rpc":
            assert set(body) == {"method", "kwargs"}
            assert body["method"] == "reload_weights"
            self.server.loaded = weights_in(body["kwargs"]["weights_path"])
            self._answer({"results": [None]})
        else:
            assert (self.path, body) == ("/reset_prefix_cache", {})
            self._answer(None)

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        assert set(body) == ROUTE_OPTIONS
        tokenizer = self.server.policy.tokenizer
        choices = []
        for member in range(body["n"]):
            ids, reason = said(
                body["prompt"],
                member,
                body["max_tokens"],
                lambda text: tokenizer(text).input_ids,
                tokenizer.eos_token_id,
            )
            logprobs = {"token_logprobs": [-0.25] * len(ids), "tokens": [""] * len(ids), "top_logprobs": []}
            choices.append({"index": member, "token_ids": ids, "logprobs": logprobs, "finish_reason": reason})
        return {"choices": choices[::-1]}  # in no order

    def _answer(self, value: Any) -> None:
        text = b"" if value is None else json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server(policy: CharPolicy):
    server = Server(policy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def engine_of(server: Server, tmp_path: Path, **options: Any) -> VLLMServer:
    return VLLMServer(base_url=f"http://127.0.0.1:{server.server_port}", folder=str(tmp_path / "w"), **options)


def test_the_server_reads_the_weights_forgets_its_cache_and_draws(server, policy, tmp_path):
    engine = engine_of(server, tmp_path)
    batch = draw(policy, engine, temperature=0.7, top_p=0.9, top_k=5, environment=Calculator())
    assert [s.completion for s in batch.samples] == ["<>57", "4", "<>3010", "6"]
    assert batch.behaviour_logp[batch.mask].unique().tolist() == [-0.25]
    routes = [route for route, _ in server.requests]
    assert routes[:2] == ["/collective_rpc", "/reset_prefix_cache"]
    assert routes[2:] == ["/v1/completions"] * 4  # two groups, then two rows that go on
    bodies = [body for _, body in server.requests[2:4]]
    assert {body["model"] for body in bodies} == {"the-model"}
    assert {body["n"] for body in bodies} == {2}
    assert {tuple(body["stop"]) for body in bodies} == {(">",)}
    assert all(body["include_stop_str_in_output"] and body["return_token_ids"] for body in bodies)
    assert len({body["seed"] for body in bodies}) == 2
    assert sorted(len(body["prompt"]) for body in bodies) == [4, 6]
    change(policy)
    draw(policy, engine)
    assert torch.equal(server.loaded, policy.model.get_input_embeddings().weight.detach())


def test_the_model_is_the_only_one_or_the_one_that_is_named(server, policy, tmp_path):
    server.models = ["a", "b"]
    with pytest.raises(RecipeError, match=r"engine.model: the server offers a, b. Name one"):
        draw(policy, engine_of(server, tmp_path))
    with pytest.raises(RecipeError, match=r"has no 'c'\. It offers: a, b"):
        draw(policy, engine_of(server, tmp_path, model="c"))
    draw(policy, engine_of(server, tmp_path, model="b"))
    assert server.requests[-1][1]["model"] == "b"


def test_a_server_that_cannot_take_weights_or_is_not_there_is_told_with_the_fix(server, policy, tmp_path):
    server.development = False
    with pytest.raises(RecipeError, match=r"/collective_rpc answered 404\. Start the server with VLLM_SERVER_DEV_MODE"):
        draw(policy, engine_of(server, tmp_path))
    nobody = VLLMServer(base_url="http://127.0.0.1:9", folder=str(tmp_path))
    with pytest.raises(RecipeError, match=r"cannot be reached.*vllm serve MODEL --logprobs-mode processed_logprobs"):
        draw(policy, nobody)


def test_bad_options_are_refused(tmp_path):
    for options, field in (
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"base_url": "http://localhost:8000/v1"}, "base_url"),
        ({"folder": "weights"}, "folder"),
        ({"parallel": 0}, "parallel"),
    ):
        with pytest.raises(ValueError, match=field):
            VLLMServer(**({"base_url": "http://localhost:8000", "folder": str(tmp_path)} | options))
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        VLLM(gpu_memory_utilization=1.5)


def test_a_lora_policy_is_handed_over_merged(server, tmp_path):
    pytest.importorskip("peft")
    from lit_group_rl.policy import HFPolicy
    from lit_group_rl.tiny import TINY_FOLDER

    policy = HFPolicy(str(TINY_FOLDER), chat=False, lora={"r": 2, "target_modules": ["q_proj"]})
    policy.load()
    with torch.no_grad():
        for name, p in policy.net.named_parameters():
            if "lora" in name:
                p.add_(0.1)
    server.policy = policy
    draw(policy, engine_of(server, tmp_path))
    name = "model.layers.0.self_attn.q_proj.weight"
    base, handed = (load_file(Path(f) / "model.safetensors") for f in (TINY_FOLDER, tmp_path / "w"))
    assert set(handed) == set(base)
    # B has 0.1 everywhere and A moved by 0.1, so every weight has moved
    assert (handed[name].float() - base[name].float()).abs().min() > 0
