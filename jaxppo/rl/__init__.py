"""Reinforcement learning on arrays: rollout, advantages, losses, update, and the learner that compiles them.

In: prompts and scores. Out: completions, trajectories and the next state.
"""

__all__ = [
    "advantages",
    "algorithms",
    "batch_sources",
    "describe",
    "learner",
    "losses",
    "ops",
    "optimizer",
    "padding",
    "rollout",
    "sampling",
    "start",
    "step",
    "supervised",
    "trained_models",
    "trajectories",
    "update",
]
