"""How a model is computed, apart from what it computes."""

from dataclasses import dataclass

from jaxppo.nn.checks import check_bool, check_choice

COMPUTE_DTYPES = ("float32", "bfloat16")
ATTENTION_FORMS = ("plain", "blocks", "triton", "splash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The form of a model's computation: what it takes in time and memory; results differ by rounding alone.

    Attributes:
        dtype: parameters are cast to it where they are used; None: computation in the parameters' own dtype. Softmax,
            layer norm statistics, logits and scores are float32 in any case.
        attention: a form of `attention.py`.
        accelerated: compute as suits a GPU or TPU: of each layer the gradient saves the results of its large products
            alone, and mostly the layers are one loop (`ModelConfig.scans_layers`).
        gradient_checkpointing: of all layers but the last, the gradient saves the inputs alone, and computes the rest
            of them again (arXiv:1604.06174).

    Raises:
        ModelError: a field has another value; the message names it.
    """

    dtype: str | None = None
    attention: str = "plain"
    accelerated: bool = False
    gradient_checkpointing: bool = False

    def __post_init__(self):
        if self.dtype is not None:
            check_choice("dtype", self.dtype, COMPUTE_DTYPES)
        check_choice("attention", self.attention, ATTENTION_FORMS)
        for name in ("accelerated", "gradient_checkpointing"):
            check_bool(name, getattr(self, name))
