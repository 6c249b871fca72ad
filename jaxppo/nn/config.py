"""What every family of models says about itself: its sizes, and how transformers writes it."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from jaxppo.errors import ModelError
from jaxppo.parallel import partition

COMPUTE_DTYPES = ("float32", "bfloat16")

SCAN_FROM = 16
"""On a CPU, the fewest layers that are one loop, which takes a tenth longer there: docs/performance.md."""

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

ATTENTION_FORMS = ("plain", "blocks", "triton", "splash")

MAX_LAYERS = 256
"""Programs that sample are as long as models are deep; published ones have at most 126 layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model; hashable, so that it can be a static argument of `jax.jit`.

    Every family has a subclass with the settings of its own. Names and meanings are transformers'.

    Attributes:
        compute_dtype: parameters are cast to it where they are used; None: computation in the parameters' own dtype.
            Softmax, layer norm statistics, logits and scores are float32 in any case.
        gradient_checkpointing: of all layers but the last, the gradient saves the inputs alone, and computes the rest
            of them again (arXiv:1604.06174); without effect on what is computed.
        accelerated: compute as suits a GPU or TPU: the layers are one loop, and of each the gradient saves the results
            of its large products alone.
        attention: a form of `attention.py`.
        num_tokens: how many tokens the tokenizer has, where the vocabulary is padded to more: logits and
            log-probabilities are over these alone. None: all of the vocabulary.
        end_ids: tokens that end a text by the files of its folder, `generation_config.json` included.
        original: content of the `config.json` it was read from, which is written back; not compared.

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
    compute_dtype: str | None = None
    gradient_checkpointing: bool = False
    accelerated: bool = False
    attention: str = "plain"
    num_tokens: int | None = None
    end_ids: tuple[int, ...] = ()
    # Not compared: files that are written in different ways
    # may mean the same model, and programs are cached by it.
    original: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        # First the sizes: what follows divides by them.
        for name in (*SIZES, "max_position_embeddings"):
            check_positive_int(name, getattr(self, name))
        if self.num_hidden_layers > MAX_LAYERS:
            raise ModelError(
                f"num_hidden_layers: expected {MAX_LAYERS} or fewer, got {self.num_hidden_layers}"
            )
        self._fill_in()
        for name in ("tie_word_embeddings", "gradient_checkpointing", "accelerated"):
            check_bool(name, getattr(self, name))
        for name in ("layer_norm_eps", "initializer_range"):
            check_at_least(0.0, name, getattr(self, name))
        for name in ("bos_token_id", "pad_token_id"):
            _check_token_id(name, getattr(self, name), self.vocab_size)
        _check_end_ids("eos_token_id", self.eos_token_id, self.vocab_size)
        _check_end_ids("end_ids", self.end_ids or None, self.vocab_size)
        # Padded entries of the vocabulary are no tokens: nothing may predict them.
        if self.num_tokens is not None and not 0 < self.num_tokens <= self.vocab_size:
            raise ModelError(
                f"num_tokens: expected 1 to vocab_size={self.vocab_size}, got {self.num_tokens}"
            )
        check_choice("attention", self.attention, ATTENTION_FORMS)
        if self.compute_dtype is not None:
            check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        self._check_heads()
        self._check_family()

    def _fill_in(self) -> None:
        """Derive the fields of this family that were not given; the sizes are checked, the rest is not."""

    def _check_heads(self) -> None:
        """Check that the heads have sizes; a family may have more to say of them."""
        if self.hidden_size % self.num_attention_heads != 0:
            raise ModelError(
                f"num_attention_heads: expected a divisor of hidden_size={self.hidden_size}, "
                f"got {self.num_attention_heads}"
            )

    def _check_family(self) -> None:
        """Check what only this family has."""

    @property
    def scans_layers(self) -> bool:
        """Whether the layers are one loop, which is compiled once however many they are, and stacked for it."""
        # On a CPU a loop copies every layer's weights and what its gradient saves. Wide layers
        # compute for so long that this costs more than compiling each of them.
        is_slow_to_compile = self.num_hidden_layers >= SCAN_FROM and not self.wide
        return self.accelerated or self.gradient_checkpointing or is_slow_to_compile

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
        """Tokens that may come next: `num_tokens`, or all of the vocabulary."""
        return self.vocab_size if self.num_tokens is None else self.num_tokens

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All of `eos_token_id`: none, one or several."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    def eos_ids(self, end_id: int) -> tuple[int, ...]:
        """Return every token that ends a text, each once: the tokenizer's or the chat template's, then `end_ids`."""
        # A dict, unlike a set, has an order.
        return tuple(dict.fromkeys((end_id, *self.end_ids)))

    @property
    def max_length(self) -> int | None:
        """Largest number of real tokens of a row; None where there is no limit (rotary embeddings)."""
        return None


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise a `ModelError` unless the value is one of the names."""
    if not isinstance(value, str) or value not in choices:
        raise ModelError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_positive_int(name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is an integer above 0."""
    # Not `isinstance`, for which True is an integer.
    if type(value) is not int or value < 1:
        raise ModelError(f"{name}: expected an integer >= 1, got {value!r}")


def check_bool(name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is true or false."""
    if type(value) is not bool:
        raise ModelError(f"{name}: expected true or false, got {value!r}")


def check_at_least(minimum: float, name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is a finite number of at least `minimum`."""
    # NaN fails both comparisons.
    if type(value) not in (int, float) or not minimum <= value < float("inf"):
        raise ModelError(f"{name}: expected a finite number >= {minimum}, got {value!r}")


def check_present(raw: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise a `ModelError` unless a `config.json` has these sizes."""
    missing = [name for name in names if name not in raw]
    if missing:
        raise ModelError(f"{missing[0]}: expected an integer, but the key is missing")


def _is_token_id(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size


def _check_token_id(name: str, value: Any, vocab_size: int) -> None:
    if value is not None and not _is_token_id(value, vocab_size):
        raise ModelError(
            f"{name}: expected null or one integer in [0, vocab_size={vocab_size}), got {value!r}"
        )


def _check_end_ids(name: str, value: Any, vocab_size: int) -> None:
    if value is None:
        return
    # transformers writes one id as a number, several as a list.
    ids = value if isinstance(value, tuple) else (value,)
    if not ids or not all(_is_token_id(token_id, vocab_size) for token_id in ids):
        shown = list(value) if isinstance(value, tuple) else value
        allowed = f"null, one integer or several in [0, vocab_size={vocab_size})"
        raise ModelError(f"{name}: expected {allowed}, got {shown!r}")


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
        return self.config(**{name: value for name, value in settings.items() if name in names})

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
