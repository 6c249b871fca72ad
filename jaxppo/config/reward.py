"""What reward functions give, and what happens where one fails."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxppo.config.checks import (
    require,
    require_finite,
    require_fraction,
    require_positive,
    without_flag,
)

TRAINING_REWARD_FIELDS = (
    "reward_weights",
    "partial",
    "normalise_by",
    "partial_scale",
    "audit_rate",
    "sentiment_label",
    "reward_timeout_s",
    "on_error",
)
"""Fields of `RewardConfig` that supervised steps have no use for."""


def is_reward_server(name: str) -> bool:
    """Return whether a name in `reward_funcs` is the address of a reward server."""
    return name.startswith(("http://", "https://"))


def reward_name(name: str) -> str:
    """Return what metrics and samples call a function of `reward_funcs`: of module:function the second part."""
    return "server" if is_reward_server(name) else name.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """The reward of a completion: the weighted sum of what reward functions give it."""

    reward_funcs: tuple[str, ...] = ("plan",)
    """Functions of the sum: plan (1 if the plan is valid, else partial), model (a learned reward model), sentiment (a
    text classifier), module:function in TRL's calling convention, or the address of a reward server such as
    http://host:8000 (docs/reward_server.md)."""
    reward_weights: tuple[float, ...] | None = None
    """Weight of each function; default: 1."""
    partial: Literal["lccs", "lcs", "prefix", "goal"] = "lccs"
    """What an invalid plan earns: its longest common run of actions with the reference, contiguous (lccs) or with gaps
    (lcs); the steps that can be carried out (prefix); or the fraction of the goal's conditions that it reaches."""
    normalise_by: Literal["max", "reference", "prediction"] = "max"
    """lccs, lcs and prefix are divided by the length of the longer plan, the reference, or the predicted plan."""
    partial_scale: float = 1.0
    """Factor of what an invalid plan earns."""
    val_timeout_s: float = without_flag(30.0)
    """A VAL process that runs longer is killed, and the plan counts as not valid."""
    audit_rate: float | None = without_flag(None)
    """Fraction of the plans judged in this process that VAL judges again; default: 0.01 where VAL is installed."""
    reward_model_path: str | None = None
    """Reward model of `model`: a sequence classification folder or hub id, or an adapter for the policy's base. Of
    `sentiment`: a text classification folder or hub id."""
    sentiment_label: str = without_flag("POSITIVE")
    """The label whose raw logit is the reward of `sentiment`."""
    reward_timeout_s: float | None = None
    """Seconds for one completion, after which a module:function is killed (it runs in processes of its own then), or
    for each of up to four attempts to ask a server (default 30); a completion that takes longer is left out."""
    on_error: Literal["stop", "skip"] | float = "stop"
    """A completion whose reward function fails stops the run, is left out of the update, or gets this reward."""

    def __post_init__(self) -> None:
        require_positive(self, "val_timeout_s", "reward_timeout_s")
        require_finite(self, "reward_timeout_s")
        require_fraction(self, "partial_scale", "audit_rate")
        fits = isinstance(self.on_error, str) or math.isfinite(self.on_error)
        require(fits, "on_error", "stop, skip or a finite number", self.on_error)
        self._check_functions()

    def _check_functions(self) -> None:
        functions = self.reward_funcs
        weights = self.reward_weights
        require(bool(functions), "reward_funcs", "at least one function", functions)
        require(
            len(set(functions)) == len(functions), "reward_funcs", "each function once", functions
        )
        names = set(map(reward_name, functions))
        requirement = "functions of different names, by which metrics and samples tell them apart"
        require(len(names) == len(functions), "reward_funcs", requirement, functions)
        if weights is not None:
            require(
                len(weights) == len(functions),
                "reward_weights",
                f"{len(functions)} numbers",
                weights,
            )
            require(all(map(math.isfinite, weights)), "reward_weights", "finite numbers", weights)

    @property
    def judges_plans(self) -> bool:
        """Whether the data are planning problems."""
        return "plan" in self.reward_funcs

    def reads_pddl_for(self, validator: str) -> str | None:
        """Return the validator that must understand the data where this one judges plans; None if none are judged."""
        if not self.judges_plans:
            return None
        # VAL does not say how far a plan gets.
        return "builtin" if self.partial in ("prefix", "goal") else validator
