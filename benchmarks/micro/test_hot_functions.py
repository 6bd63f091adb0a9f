"""The functions that take the time, one by one, at the sizes of W1 and W3.

    pip install 'lit-group-rl[bench]' && OMP_NUM_THREADS=1 pytest benchmarks/micro --benchmark-columns=min,median

Nothing is asserted of a time: they are for comparing a change with what was before (--benchmark-compare).
"""

import pytest
import torch

pytest.importorskip("pytest_benchmark")

from benchmarks.workloads import WORKLOADS, make_model, make_prompts
from lit_group_rl.functional.groups import group_std
from lit_group_rl.functional.logprobs import head_logprobs
from lit_group_rl.functional.rng import uniforms
from lit_group_rl.functional.sampling import choose, draw
from lit_group_rl.generation import generate
from lit_group_rl.packing import pack
from lit_group_rl.scoring import CausalNet

SIZES = {"W1": (64, 256, 4096), "W3": (16, 96, 151936)}  # rows, width, vocabulary


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("size", SIZES)
def test_choose(benchmark, size):
    rows, _, vocabulary = SIZES[size]
    logits, uniform = torch.randn(rows, vocabulary), torch.rand(rows, dtype=torch.float64)
    token, _, _ = benchmark(lambda: choose(logits.clone(), uniform))
    assert token.shape == (rows,)


@pytest.mark.parametrize("size", SIZES)
def test_draw(benchmark, size):
    rows, _, vocabulary = SIZES[size]
    p, uniform = torch.randn(rows, vocabulary).softmax(-1), torch.rand(rows, dtype=torch.float64)
    assert benchmark(draw, p, uniform).shape == (rows,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entropy", [False, True])
def test_head_with_gradient(benchmark, size, entropy):
    _, width, vocabulary = SIZES[size]
    hidden = torch.randn(256, width, requires_grad=True)
    weight = (0.1 * torch.randn(vocabulary, width)).requires_grad_()
    ids = torch.randint(vocabulary, (256,))

    def run():
        logp, ent = head_logprobs(hidden, weight, None, ids, entropy=entropy)
        (logp.sum() + (ent.sum() if entropy else 0)).backward()
        return logp

    assert benchmark(run).shape == (256,)


def _completions(w):
    ids = torch.randint(100, 4000, (w.rows, w.max_completion))
    lengths = torch.randint(2, w.max_completion, (w.rows, 1))
    prompts = make_prompts(w, w.prompts)
    width = max(map(len, prompts))
    prompt = torch.tensor([[0] * (width - len(p)) + p for p in prompts for _ in range(w.group)])
    groups = torch.arange(w.prompts).repeat_interleave(w.group)
    return prompt, prompt > 0, ids, torch.arange(w.max_completion) < lengths, groups


def test_pack(benchmark):
    batch = _completions(WORKLOADS["W1"])
    packed = benchmark(lambda: pack(*batch, torch.float32, 2))
    assert len(packed.back) == packed.input_ids.numel()


@pytest.mark.parametrize("name", ["W1", "W2"])
def test_score_and_its_gradient(benchmark, name):
    w = WORKLOADS[name]
    net, batch = CausalNet(make_model(w).eval()), [x[:16] for x in _completions(w)]

    def run():
        logp = net(*batch).logp
        logp.sum().backward()
        return logp

    assert benchmark.pedantic(run, rounds=3, warmup_rounds=1).shape == (16, w.max_completion)


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_rollout(benchmark, name):
    w = WORKLOADS[name]
    model, prompts = make_model(w).eval(), make_prompts(w, w.prompts)

    def run():
        return generate(
            model, prompts, copies=w.group, keys=range(w.rows), max_new_tokens=w.max_completion, temperature=1.0,
            eos_ids=w.stop_ids, pad_id=0,
        )  # fmt: skip

    assert len(benchmark.pedantic(run, rounds=3, warmup_rounds=1).ids) == w.rows


def test_uniforms(benchmark):
    assert benchmark(uniforms, range(512), 0, 64).shape == (512, 64)


def test_group_std(benchmark):
    scores, groups = torch.rand(512, dtype=torch.float64), torch.arange(64).repeat_interleave(8)
    assert benchmark(group_std, scores, groups).shape == (512,)
