"""LoRA adapters on nested dicts: make, attach and merge.

An adapter is a nested dict that mirrors the parameters where it has something to add:

    {"trunk": {"layers": {"0": {"attention": {"dense": {"lora_a": [inputs, r], "lora_b": [r, outputs]}}}}},
     "score": {"kernel": [D, 1]}}                       # heads that are trained in full, of value and reward models

The base stays as it is, one set of arrays under any number of adapters: policy, value and reward model each have one,
the reference has none. A layer computes x W + s (x A) B with s = alpha / r, or alpha / sqrt(r) for rank-stabilised
adapters. Source: arXiv:2106.09685, arXiv:2312.03732.

Written on plain dicts, because Flax's own `nnx.LoRALinear` has no alpha and mixes base and adapter in one state, and
qwix rewrites modules by intercepting their calls; here only `nn/layers.py: Linear` knows of adapters.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.errors import ModelError
from jaxppo.nn import ModelConfig, family_of, trunk_shapes
from jaxppo.parallel import partition
from jaxppo.types import Array, Params


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Shape of an adapter; names and meanings are PEFT's.

    Attributes:
        r: rank.
        lora_alpha: see the factor s above.
        target_modules: names of linear layers as in transformers, each the end of a full name ("query_key_value",
            "mlp.c_fc"); or one regular expression that matches full names; None: all linear layers of the trunk.
        use_rslora: alpha / sqrt(r) instead of alpha / r.

    Raises:
        ModelError: a field has a value that no adapter can have; the message names it.
    """

    r: int = 16
    lora_alpha: float = 32
    target_modules: tuple[str, ...] | str | None = None
    use_rslora: bool = False

    def __post_init__(self):
        if type(self.r) is not int or self.r < 1:
            raise ModelError(f"r: expected a whole number of at least 1, got {self.r!r}")
        if type(self.lora_alpha) not in (int, float) or not 0 < self.lora_alpha < float("inf"):
            raise ModelError(f"lora_alpha: expected a positive number, got {self.lora_alpha!r}")
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                raise ModelError(
                    f"target_modules: expected a regular expression, got: {error}"
                ) from error

    @property
    def scale(self) -> float:
        """The factor s."""
        rank = self.r**0.5 if self.use_rslora else self.r
        return self.lora_alpha / rank

    def targets(self, name: str) -> bool:
        """Return whether a linear layer with this full name in transformers gets an adapter."""
        if self.target_modules is None:
            return True
        # A text is one expression that matches the whole name, a tuple are ends of it, as in PEFT.
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in self.target_modules)


def linear_layers(config: ModelConfig) -> dict[str, tuple[tuple[str, ...], tuple[int, int]]]:
    """Return the path and [inputs, outputs] of every linear layer of the trunk by its full name in transformers."""
    family = family_of(config.model_type)
    layers = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path({"trunk": trunk_shapes(config)}):
        path = tuple(key.key for key in keys)
        if path[-1] == "kernel":
            # Users name layers as transformers and PEFT do, whatever we call them.
            name = family.trunk_prefix + family.hf_name(path).name.removesuffix(".weight")
            layers[name] = (path[:-1], leaf.shape)
    return layers


def init_adapter(config: ModelConfig, lora: LoraConfig, key: Array) -> Params:
    """Draw an adapter that changes nothing yet: A uniform in +-1 / sqrt(inputs), B zero, as PEFT does.

    Raises:
        ModelError: no layer of the model is named by `target_modules`.
    """
    layers = linear_layers(config)
    targets = [layer for name, layer in layers.items() if lora.targets(name)]
    if not targets:
        raise _no_target([lora.target_modules], layers)
    adapter: Params = {}
    layer_keys = jax.random.split(key, len(targets))
    for (path, (inputs, outputs)), layer_key in zip(targets, layer_keys, strict=True):
        # PEFT draws A by kaiming_uniform with a = sqrt(5), of which this is the bound.
        bound = inputs**-0.5
        factors = {
            "lora_a": jax.random.uniform(layer_key, (inputs, lora.r), minval=-bound, maxval=bound),
            "lora_b": jnp.zeros((lora.r, outputs)),
        }
        set_path(adapter, path, factors)
    return adapter


def check_targets(config: ModelConfig, lora: LoraConfig) -> None:
    """Raise a `ModelError` that lists the names in `target_modules` which are those of no layer of the model."""
    if not isinstance(lora.target_modules, tuple):
        return
    # Each name by itself: a misspelt one would go unnoticed if another one matches.
    layers = linear_layers(config)
    unmatched = []
    for target in lora.target_modules:
        one_target = dataclasses.replace(lora, target_modules=(target,))
        if not any(one_target.targets(name) for name in layers):
            unmatched.append(target)
    if unmatched:
        raise _no_target(unmatched, layers)


def _no_target(unmatched: Sequence[Any], layers: Mapping[str, Any]) -> ModelError:
    last_names = dict.fromkeys(name.split(".")[-1] for name in layers)
    choices = ", ".join(last_names)
    refused = ", ".join(repr(target) for target in unmatched)
    return ModelError(
        f"lora_target_modules: expected all-linear or names among {choices}, got {refused}"
    )


def set_path(tree: Params, path: tuple[str, ...], value: Any) -> None:
    """Set a value at a path of nested dicts; a dict is merged into the one that is already there."""
    *parents, name = path
    for parent in parents:
        tree = tree.setdefault(parent, {})
    if isinstance(value, dict):
        value = tree.get(name, {}) | value
    tree[name] = value


def attach(base: Params, adapter: Params, scale: float) -> Params:
    """Attach an adapter: the parameters that `models.apply` takes; the base's arrays are shared, not copied.

    Args:
        base: parameters.
        adapter: see above; its heads take the place of the base's.
        scale: the factor s, multiplied into B.
    """
    # A new dict on the way to each change: the base is also the reference, and stays as it is.
    result = dict(base)
    for name, value in adapter.items():
        if isinstance(value, dict):
            result[name] = attach(base.get(name, {}), value, scale)
        else:
            # The factor s goes into B once, so that layers compute (x A) B.
            result[name] = value * scale if name == "lora_b" else value
    return result


def merge(base: Params, adapter: Params, scale: float) -> Params:
    """Merge an adapter into the parameters of its base: W + s A B in place of W, in its dtype."""
    return merge_attached(attach(base, adapter, scale))


def merge_attached(params: Params, dtype: str | None = None, path: str = "") -> Params:
    """Put W + A B in the place of W, A and B where adapters are attached; W, and the sum, may be a device's part.

    Args:
        params: with adapters, or without.
        dtype: what the sums will be rounded to, if less than their own; A B then has the platform's default precision,
            as a TPU's compiler takes seconds for a product in full float32.
        path: of `params` in the model.
    """
    if "lora_a" not in params:
        result = {}
        for name, child in params.items():
            result[name] = (
                merge_attached(child, dtype, f"{path}/{name}") if isinstance(child, dict) else child
            )
        return result
    kernel = params["kernel"]
    # A has the inputs of W and B its outputs, whole on
    # every device: take the part that fits this device's W.
    factors = [params["lora_a"], params["lora_b"]]
    for axis, mesh_axis in enumerate(partition.axes_of(f"{path}/kernel")):
        if factors[axis].shape[axis] != kernel.shape[axis]:
            assert mesh_axis is not None
            factors[axis] = partition.local_part(factors[axis], axis, kernel.shape[axis], mesh_axis)
    product = jnp.matmul(*factors, precision=None if dtype is None else "default")
    result = {name: child for name, child in params.items() if name not in ("lora_a", "lora_b")}
    return result | {"kernel": (kernel + product).astype(dtype or kernel.dtype)}


def fingerprint(base: Params) -> str:
    """Return a short name of a trunk's numbers: the SHA-256 of 64 of each array's, in the order of the tree."""
    # A sample is enough to tell two models apart, and does not bring a large one to the host.
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(base["trunk"]):
        sample = leaf.reshape(-1)[:: max(1, leaf.size // 64)][:64]
        digest.update(np.asarray(sample, np.float32).tobytes())
    return digest.hexdigest()[:16]
