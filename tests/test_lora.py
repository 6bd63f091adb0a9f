"""Training through an adapter on the embedded policy: what moves, what it is held to, resuming, leaving."""

import pytest
import torch
from torch import nn

from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.cli.compose import compose, options_of
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.policy import HFPolicy
from lit_group_rl.rewards import ExactMatch
from lit_group_rl.tiny import TINY_FOLDER, TinyPolicy
from lit_group_rl.types import Recipe, RecipeError
from tests import tiny_runs

peft = pytest.importorskip("peft")
OPTIONS = options_of(compose(["grpo", "policy/lora"]).at("model.policy"))
PROMPT = torch.tensor([[20, 21, 22, 23, 24]])


def fit(steps, **options):
    # sums of two digits, of which the policy solves some, so that groups differ
    data = PromptData(Addition(level=2, train_size=200), prompts_per_step=4, heldout_size=8)
    parts = {"policy": TinyPolicy(**OPTIONS), "rewards": {"exact": ExactMatch()}, "aux_losses": {"kl": KL(coef=0.04)}}
    return tiny_runs.fit(**parts, data=data, minibatches=1, steps=steps, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two RL steps: what was logged, the weights before and after, the folder."""
    folder = tmp_path_factory.mktemp("lora")
    fresh = TinyPolicy(**OPTIONS)
    fresh.load()
    module, logged = fit(2, callbacks=[CheckpointCallback(str(folder))])
    return {"logged": logged, "fresh": fresh, "module": module, "folder": folder}


def test_the_overlay_is_what_peft_reads():
    assert OPTIONS == {"lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}}


def test_nothing_stands_between_policy_and_reference_before_the_first_update(run):
    # the second matrix of a fresh adapter is zero, so policy and base are the same function
    assert run["logged"][1]["policy/kl_ref"] == 0
    assert run["logged"][1]["loss/kl"] == 0
    assert run["logged"][2]["loss/kl"] > 0
    assert run["module"].policy.reference is None


def test_only_the_adapter_moves(run):
    before, after = run["fresh"].net.state_dict(), run["module"].policy.net.state_dict()
    moved = {k for k in after if "lora_B" in k and not after[k].equal(torch.zeros_like(after[k]))}
    # 3 layers with q, k, v, o, gate, up and down
    assert len(moved) == 3 * 7
    kept = [k for k in after if "lora_" not in k]
    assert all(before[k].equal(after[k]) for k in kept)
    assert len(kept) > 3 * 7
    trained = [n for n, p in run["module"].policy.net.named_parameters() if p.requires_grad]
    assert all("lora_" in n for n in trained)


def test_a_resumed_run_is_the_unbroken_one(run):
    whole, _ = fit(3)
    resumed, logged = fit(3, resume_from=run["folder"])
    assert list(logged) == [3]
    assert tiny_runs.digest(whole) == tiny_runs.digest(resumed)


def test_merged_and_alone_it_is_the_same_model(run, tmp_path):
    from transformers import AutoModelForCausalLM

    policy = run["module"].policy
    policy.save(tmp_path / "merged")
    policy.save_adapter(tmp_path / "adapter")
    here = policy.model(PROMPT).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(TINY_FOLDER)
    torch.testing.assert_close(merged(PROMPT).logits, here, rtol=1e-4, atol=1e-4)
    assert (base(PROMPT).logits - here).abs().max() > 1e-3
    alone = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(alone(PROMPT).logits, here, rtol=1e-4, atol=1e-4)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


def test_dropout_of_an_adapter_is_off(tmp_path):
    # many published adapters were trained with it; the first ratio would not be 1
    first = TinyPolicy(lora={**OPTIONS["lora"], "lora_dropout": 0.5})
    first.load()
    for p in first.net.parameters():
        if p.requires_grad:
            p.data.normal_(0, 0.05)
    first.save_adapter(tmp_path)
    again = HFPolicy(str(TINY_FOLDER), adapter=str(tmp_path))
    again.load()
    for policy in (first, again):
        assert any(isinstance(m, nn.Dropout) for m in policy.net.modules())
        policy.train()
        assert policy.model(PROMPT).logits.equal(policy.model(PROMPT).logits)


def test_mistakes_are_told(tmp_path):
    with pytest.raises(RecipeError, match=r"model\.policy\.lora: .*Linear layers of this model: down_proj"):
        TinyPolicy(lora={"target_modules": "query"}).load()
    plain = TinyPolicy()
    with pytest.raises(RecipeError, match=r"there is no adapter\. Leave out --adapter"):
        plain.save_adapter(tmp_path)
    both = HFPolicy("x", lora={"r": 2}, adapter="y")
    problems = [p for p in both.checks(Recipe({}, 1, 1, 1)) if p.field == "model.policy.lora"]
    assert [p.warning for p in problems] == [True]
    assert list(plain.checks(Recipe({}, 1, 1, 1))) == []
