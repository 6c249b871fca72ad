"""The rewards that come with jaxppo: plans, learned reward models, sentiment, HTTP, isolated processes.

In: prompts, completions and columns on the host. Out: a score per completion. Nothing is imported here: rewards of
plans need no JAX.
"""
