"""The reward functions that come with jaxppo: plans, reward models, sentiment, length, HTTP, isolated processes.

In: prompts, completions and columns on the host. Out: a score per completion. A new one is a maker and a row in
`registry`. Nothing is imported here, since the rewards of plans need no JAX.
"""

__all__ = [
    "http_client",
    "http_contract",
    "isolated",
    "judge",
    "plan",
    "registry",
    "reward_model",
    "score_head",
    "sentiment",
]
