"""lit-group-rl: group-relative reinforcement learning of language models as recipes of swappable components."""

__version__ = "0.1.0"
