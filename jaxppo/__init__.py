"""jaxppo: PPO for causal language models in JAX, with rewards computed on the host."""

__version__ = "0.1.0"
