"""What every family of models says about itself: its sizes, and how transformers writes it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from jaxppo.nn.checks import (
    check_at_least,
    check_bool,
    check_heads_divide,
    check_num_layers,
    check_positive_int,
    check_token_id,
    check_token_ids,
)
from jaxppo.nn.computation import Computation
from jaxppo.nn.source import ModelSource
from jaxppo.parallel import partition

SCAN_FROM = 16
"""On a CPU, the fewest layers that are one loop, which takes a tenth longer there: docs/performance.md."""
SCAN_FROM_ON_GPU = 17
"""The same on a GPU, where each layer more takes about a second and a half to compile: docs/performance.md."""

WIDE_FROM = 512
"""Hidden size from which a layer's weights (12 MiB in fp32) fit no cache of a core: docs/performance.md."""

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
"""Fields that no model can be built without; names of transformers, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture of a model; hashable, so that it can be a static argument of `jax.jit`.

    Every family has a subclass with the settings of its own. Names and meanings are transformers'.

    Attributes:
        computation: how it is computed, which is no part of the architecture but goes wherever this goes.
        source: what its folder says beside the architecture.

    Raises:
        ModelError: a field has a value no model can be built from; the message names it.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    layer_norm_eps: float = 1e-5
    hidden_act: str
    tie_word_embeddings: bool
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    computation: Computation = field(default_factory=Computation)
    source: ModelSource = field(default_factory=ModelSource)

    def __post_init__(self):
        # First the sizes: what follows divides by them.
        for name in (*SIZES, "max_position_embeddings"):
            check_positive_int(name, getattr(self, name))
        check_num_layers(self.num_hidden_layers)
        check_bool("tie_word_embeddings", self.tie_word_embeddings)
        for name in ("layer_norm_eps", "initializer_range"):
            check_at_least(0.0, name, getattr(self, name))
        for name in ("bos_token_id", "pad_token_id"):
            check_token_id(name, getattr(self, name), self.vocab_size)
        check_token_ids("eos_token_id", self.eos_token_id, self.vocab_size)
        self.source.check(self.vocab_size)
        self._check_heads()
        self._check_family()

    @classmethod
    def derived_fields(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of this family that follow from others, for a model whose settings do not have them."""
        return {}

    def _check_heads(self) -> None:
        """Check that the heads have sizes; a family may have more to say of them."""
        check_heads_divide(self.num_attention_heads, self.hidden_size)

    def _check_family(self) -> None:
        """Check what only this family has."""

    @property
    def scans_layers(self) -> bool:
        """Whether the layers are one loop, which is compiled once however many they are, and stacked for it."""
        if self.computation.gradient_checkpointing:
            return True
        if self.computation.accelerated:
            # A loop copies what its gradient saves of every layer, which on a GPU is a fifth of what learning reads
            # and writes.
            is_deep = self.num_hidden_layers >= SCAN_FROM_ON_GPU
            return is_deep or self.computation.attention != "triton"
        # On a CPU it copies their weights, too. Wide layers compute for so long that this costs more than compiling
        # each of them.
        return self.num_hidden_layers >= SCAN_FROM and not self.wide

    @property
    def is_unrolled(self) -> bool:
        """Whether an accelerated model has each layer in its own place of the program, not all in one loop."""
        return self.computation.accelerated and not self.scans_layers

    @property
    def wide(self) -> bool:
        """Whether the weights of one layer are more than the cache of a core holds."""
        return self.hidden_size >= WIDE_FROM

    @property
    def head_dim(self) -> int:
        """Size K of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Heads of the cache; fewer than `num_attention_heads` where several queries share a key."""
        return self.num_attention_heads

    @property
    def num_logits(self) -> int:
        """Tokens that may come next: those that the tokenizer has, or all of the vocabulary."""
        return self.vocab_size if self.source.num_tokens is None else self.source.num_tokens

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All of `eos_token_id`: none, one or several."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    @property
    def max_length(self) -> int | None:
        """Largest number of real tokens of a row; None where there is no limit (rotary embeddings)."""
        return None


class HfName(NamedTuple):
    """Where transformers stores one of our arrays: under which name, and whether transposed."""

    name: str
    transpose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type`: all that `models.py` and the room `hf/` need to know of it.

    Attributes:
        config: its class of configuration.
        trunk: its module, `trunk(config, rngs)`. `embed(input_ids, positions)`, of [B, T] int and [B or 1, T] int32,
            gives the input of the first layer, [B, T, D], and rotary angles or None. `layers` is a dict by number;
            `layer(hidden, context) -> (hidden, cache)`, see `AttentionContext`. `final_layer_norm(hidden)` comes after
            the last of them. The embedding of tokens is named `embed_in`.
        from_hf: content of `config.json` -> keyword arguments of `config`, `vocab_size`, `bos_token_id` and
            `eos_token_id` among them; raises `ModelError` for what is unsupported.
        to_hf: configuration -> the keys of transformers 5 that decide what the model computes, and the older names of
            those that transformers 4 does not know.
        trunk_prefix: prepended to the names of the trunk's tensors wherever a head sits on it.
        architectures: name of the head in `models.init_params` -> class in transformers.
        names: path of an array in our parameters -> its name in transformers; {i} is the number of a layer.
        ignored: tensors of this name, found in older checkpoints, are constants and no parameters.
        partition: end of a parameter's path -> the device axis that each of its dimensions is split over.
        replaced_keys: keys of `config.json` whose meaning `to_hf` writes under other names; those that it writes as
            well are in every export.
        saved_widths: numbers that the gradient of a layer saves per token, as multiples of the hidden and of the
            intermediate size, for the memory budget. 10: the input of the layer, two norms, queries, keys and values
            before and after rotation or transposition (6), and what attention gives. 3: the MLP's activation, its input
            and its derivative. Attention weights come on top. Fitted to `memory_analysis()` of the update of GPT-NeoX
            on CPU, in which all three grow like this.
        saved_intermediates: how many arrays of the intermediate size an accelerated model saves: what its activation
            needs.
        saved_outputs: how many of the hidden size it saves beside its input: results of attention and MLP that are
            normalised.
    """

    config: type[ModelConfig]
    trunk: Callable[..., Any]
    from_hf: Callable[[dict[str, Any]], dict[str, Any]]
    to_hf: Callable[[Any], dict[str, Any]]
    trunk_prefix: str
    architectures: dict[str | None, str]
    names: dict[str, HfName]
    ignored: re.Pattern[str]
    partition: Mapping[str, tuple[str | None, ...]]
    replaced_keys: tuple[str, ...] = ()
    saved_widths: tuple[int, int] = (10, 3)
    saved_intermediates: int = 1
    saved_outputs: int = 0

    def __post_init__(self) -> None:
        # How a parameter is split is looked up by its path
        # alone, so that all families share one table.
        partition.add(self.partition)

    def new_config(self, **settings: Any) -> ModelConfig:
        """Return the configuration of a new model of this family.

        Args:
            settings: of `config`; those that the family does not have are passed over, `intermediate_size` is four
                times the hidden size unless given.
        """
        names = {each_field.name for each_field in fields(self.config)}
        settings = {"intermediate_size": 4 * settings["hidden_size"]} | settings
        settings = {name: value for name, value in settings.items() if name in names}
        return self.config(**self.config.derived_fields(settings) | settings)

    @property
    def fan_in_fan_out(self) -> bool:
        """Whether linear layers of the trunk are stored as [inputs, outputs], as GPT-2's Conv1D does; PEFT's name."""
        # Heads are linear layers of torch in every family.
        kernels = [
            name
            for path, name in self.names.items()
            if path.startswith("trunk/") and path.endswith("/kernel")
        ]
        return any(not name.transpose for name in kernels)

    def hf_name(self, path: tuple[str, ...]) -> HfName:
        """Return where transformers stores the array at a path of our parameters; the trunk's without their prefix."""
        # All layers have one entry in the table, with {i} for the number.
        layer = ""
        parts = []
        for part in path:
            if part.isdigit():
                layer = part
                part = "{i}"
            parts.append(part)
        name, transpose = self.names["/".join(parts)]
        return HfName(name.replace("{i}", layer), transpose)


def linear_names(path: str, hf_name: str, transpose: bool = True) -> dict[str, HfName]:
    """Name a linear layer's arrays; torch's Linear stores [outputs, inputs], ours is [inputs, outputs]."""
    return {
        f"{path}/kernel": HfName(f"{hf_name}.weight", transpose=transpose),
        f"{path}/bias": HfName(f"{hf_name}.bias"),
    }


def norm_names(path: str, hf_name: str) -> dict[str, HfName]:
    """Name a layer norm's arrays."""
    return {
        f"{path}/scale": HfName(f"{hf_name}.weight"),
        f"{path}/bias": HfName(f"{hf_name}.bias"),
    }


SCORE_NAMES = linear_names("score", "score")
"""The head of a `...ForSequenceClassification`; the bias is not transformers', some reward models have one."""
