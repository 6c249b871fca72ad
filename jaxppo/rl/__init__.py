"""Reinforcement learning on arrays: rollout, advantages, losses, update, and PPO that compiles them.

In: prompts and scores. Out: completions, trajectories and the next state.
"""

__all__ = [
    "advantages",
    "ahead",
    "algorithms",
    "describe",
    "losses",
    "ops",
    "optimizer",
    "padding",
    "ppo",
    "rollout",
    "sampling",
    "start",
    "supervised",
    "trajectories",
    "update",
]
