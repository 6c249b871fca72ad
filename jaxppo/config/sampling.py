"""How completions are sampled, in training and in evaluation."""

import itertools
from dataclasses import dataclass
from typing import Literal

from jaxppo.config.checks import (
    require,
    require_finite,
    require_fraction,
    require_positive,
    without_flag,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How completions are sampled."""

    response_length: int = 53
    """Most tokens a completion may have, stop token included."""
    output_min_length: int | None = without_flag(None)
    """With it, the most tokens of each completion are drawn anew from output_min_length ... response_length (both may
    come out), as with TRL 0.11's LengthSampler; default: response_length for all."""
    stop_token: Literal["eos", "none"] | int = "eos"
    """eos: a completion ends with the tokenizer's end of sequence, that of its chat template, or any that the model's
    `config.json` and `generation_config.json` list. A number: with this token alone, which stays in the text that
    rewards see. none: with nothing; response_length tokens are sampled."""
    stop_strings: tuple[str, ...] = ()
    """A completion also ends with the token that completes one of these strings, which stay in the text that rewards
    see; in a shell a new line is $'\\n'."""
    temperature: float = 0.7
    """Logits are divided by it, in sampling and in every log-probability."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Sample among the fewest tokens whose probabilities add up to this; 1 for all."""
    min_p: float | None = None
    """Sample among tokens at least this times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Logits of tokens that prompt or completion have already are divided by it, negative ones multiplied (CTRL)."""
    drop_ended_rows: bool | None = without_flag(None)
    """Go on with half of the rows as soon as fewer are still to be continued, and so on: a step then reads less of the
    cache. Each row keeps its random numbers, but products of fewer rows may be rounded differently. Default: on
    accelerators; on a CPU it saves little and takes more programs to compile."""

    def __post_init__(self) -> None:
        require_positive(self, "response_length")
        require_finite(self, "temperature", "top_k")
        require(0.0 < self.top_p <= 1.0, "top_p", "a number in (0, 1]", self.top_p)
        require_fraction(self, "min_p")
        if self.output_min_length is not None:
            requirement = f"1 to response_length ({self.response_length})"
            fits = 1 <= self.output_min_length <= self.response_length
            require(fits, "output_min_length", requirement, self.output_min_length)
        # Every text ends with the empty string, so that each completion would be one token long.
        require(
            all(self.stop_strings), "stop_strings", "strings that are not empty", self.stop_strings
        )
        require_positive(self, "repetition_penalty")
        require_finite(self, "repetition_penalty")
        if isinstance(self.stop_token, int):
            require(self.stop_token >= 0, "stop_token", "eos, none or a token id", self.stop_token)

    @property
    def truncates(self) -> bool:
        """Whether completions come from another distribution than the one the loss is about."""
        return (
            self.top_k > 0 or self.top_p < 1.0 or bool(self.min_p) or self.repetition_penalty != 1.0
        )

    def check_stop_token(self, num_tokens: int) -> None:
        """Raise a `ConfigError` where a vocabulary of so many tokens has no such `stop_token`."""
        fits = isinstance(self.stop_token, str) or self.stop_token < num_tokens
        require(fits, "stop_token", f"less than the vocabulary's {num_tokens}", self.stop_token)

    def stop_ids(self, end_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of which any ends a completion, `end_ids` unless another is configured; maybe none."""
        if isinstance(self.stop_token, int):
            return (self.stop_token,)
        return () if self.stop_token == "none" else end_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How plans are evaluated."""

    eval_validator: Literal["builtin", "val"] | None = None
    """Who judges plans in evaluation; default: VAL where it is installed, else the in-process validator."""
    eval_temperature: float = 0.0
    """0 is greedy decoding."""
    eval_top_k: int = 0
    """Sample among the k most likely tokens; 0 for all."""
    eval_top_p: float = 1.0
    """Sample among the fewest tokens whose probabilities add up to this; 1 for all."""
    eval_batch_size: int = 256
    """Most completions decoded at once; fewer where they would take more than a quarter of the memory, and at most 64
    of a wide model (hidden size from 512) on a CPU. sft: also most rows read at once for the loss."""
    eval_rows: int | None = None
    """Most rows of each split that the command evaluate, and evaluations every eval_steps, look at: always the same
    rows, evenly over domains. The evaluations before and after training look at all rows. Default: all."""
    length_edges: tuple[int, ...] = without_flag((0, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129))
    """Lengths of the reference plan at which the bins of the results begin; the last bin has no end."""

    def __post_init__(self) -> None:
        # The bins hold every length once, the first from 0 on and the last without an end.
        edges = self.length_edges
        increasing = (
            bool(edges)
            and edges[0] >= 0
            and all(low < high for low, high in itertools.pairwise(edges))
        )
        require(increasing, "length_edges", "increasing plan lengths from 0 on", edges)
        require_positive(self, "eval_batch_size", "eval_rows")
        require_finite(self, "eval_temperature", "eval_top_k")
        require(0.0 < self.eval_top_p <= 1.0, "eval_top_p", "a number in (0, 1]", self.eval_top_p)
        # Greedy decoding looks at the most likely token
        # alone, so that a truncation would have no effect.
        if self.eval_temperature == 0.0:
            requirement = "a number above 0 with eval_top_k or eval_top_p; 0 is greedy"
            require(
                self.eval_top_k == 0 and self.eval_top_p == 1.0,
                "eval_temperature",
                requirement,
                0.0,
            )
