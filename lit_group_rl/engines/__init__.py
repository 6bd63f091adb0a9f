"""Programs that draw completions in place of the policy's own decoding."""

from lit_group_rl.engines.base import RolloutEngine
from lit_group_rl.engines.continuous_batching import ContinuousBatching
from lit_group_rl.engines.vllm import VLLM
from lit_group_rl.engines.vllm_server import VLLMServer

__all__ = ["VLLM", "ContinuousBatching", "RolloutEngine", "VLLMServer"]
