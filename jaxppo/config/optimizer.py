"""AdamW, its schedule, and what it trains: all weights or LoRA adapters."""

from dataclasses import dataclass
from typing import Literal

from jaxppo.config.checks import (
    require,
    require_default,
    require_finite,
    require_fraction,
    require_positive,
    without_flag,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = 3e-6
    """Peak learning rate."""
    value_learning_rate: float | None = None
    """Peak learning rate of the value model; default: learning_rate."""
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    """Decay to 0 over the run, after the warm-up."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises; that of the first is the peak divided by them."""
    adam_beta2: float = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: float = 1e-5
    """Added to Adam's denominator. 1e-5 as in OpenAI's PPO: 1e-8 turns rounding noise of zero gradients into steps."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Clip the global gradient norm to this; `None` for no clipping."""

    def __post_init__(self) -> None:
        require_finite(self, "learning_rate", "value_learning_rate", "warmup_steps")
        require_positive(self, "adam_epsilon", "max_grad_norm")
        require_fraction(self, "weight_decay")
        # At 1 the moment would never change, and its bias correction would divide by 0.
        fits = 0.0 <= self.adam_beta2 < 1.0
        require(fits, "adam_beta2", "a number in [0, 1)", self.adam_beta2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """Training a low-rank adapter instead of all weights (LoRA); names as in TRL."""

    use_peft: bool = False
    """Train LoRA adapters on a frozen base instead of all weights; in train those of policy and value model are on one
    base, which is also the reference."""
    lora_r: int = 16
    """Rank."""
    lora_alpha: float = 32.0
    """The adapter's product is multiplied by lora_alpha / lora_r."""
    lora_target_modules: tuple[str, ...] | None = None
    """Linear layers with an adapter, by the end of their name in transformers (query_key_value, mlp.c_fc); default: all
    of the trunk."""
    use_rslora: bool = without_flag(False)
    """Multiply by lora_alpha / sqrt(lora_r) instead."""
    lora_path: str | None = None
    """PEFT folder to start the language model's adapter from; its shape takes the place of the settings above."""

    def __post_init__(self) -> None:
        require_positive(self, "lora_r", "lora_alpha")
        if not self.use_peft:
            require_default(self, "lora_path", "without use_peft")
