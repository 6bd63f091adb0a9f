"""What answers the policy in the middle of a completion: tools, games, simulated users."""

from lit_group_rl.environments.base import Environment, Turn
from lit_group_rl.environments.calculator import Calculator

__all__ = ["Calculator", "Environment", "Turn"]
