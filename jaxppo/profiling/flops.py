"""The floating-point operations of an update, counted by arithmetic from the shapes of its models and its batch.

Counted are the matrix products that the mathematics asks for: 2 operations per weight and token in a forward pass, as
much again for the gradient of the inputs and for that of the weights, and 4 operations per query, key and width in
attention, where every token is taken to see its whole row. In the last layer, tokens whose hidden state nobody reads
have keys and values only. Padding counts, also what `padding.cut_to_longest` leaves out, so that the rate is too high
where prompts differ much in length; what is computed a second time to save memory does not count, nor do norms,
activations, softmax and the optimizer.

Source: PaLM (arXiv:2204.02311), appendix B, 6 N + 12 L H Q T per token of a training step, taken apart into forward and
backward passes, so that sampling and scoring can be counted too.
"""

from typing import Any, NamedTuple

import jax

from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel import stacks
from jaxppo.types import Params


class Products(NamedTuple):
    """What a token is multiplied with on its way through one model."""

    trunk: int  # weights of the linear layers
    # Of those, weights of the last layer but for keys
    # and values: only tokens that are read need them
    last: int
    adapter: int  # weights of adapters on them; 0: the trunk itself is trained
    head: int  # weights of the language model head
    # Heads x head size of one layer: multiplications with each token seen, of queries with keys
    attention: int
    layers: int


class Models(NamedTuple):
    """The models of a run."""

    policy: Products
    value: Products | None  # of a separate value model


class Shapes(NamedTuple):
    """The batch of one update, padding included, over all devices."""

    prompts: int
    prompt_length: int  # tokens
    completions: int
    completion_length: int  # tokens that a completion has room for
    longest_completion: int  # tokens drawn for each completion
    sequence_length: int  # tokens of prompt and completion together, as scored and learned from


def products(config: ModelConfig, params: Params) -> Products:
    """Read off a model's shapes.

    Args:
        config: of the model.
        params: its nested dict of arrays, or of their shapes, adapters attached.
    """

    def size(tree: Params, *names: str) -> int:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return sum(leaf.size for keys, leaf in leaves if keys[-1].key in names)

    # One by one: in stacked arrays the last layer has none of its own.
    trunk = jax.eval_shape(stacks.unstack, params["trunk"])
    layers = config.num_hidden_layers
    keys_and_values = 2 * config.hidden_size * config.num_key_value_heads * config.head_dim
    return Products(
        trunk=size(trunk, "kernel"),
        last=size(trunk["layers"][str(layers - 1)], "kernel") - keys_and_values,
        adapter=size(trunk, "lora_a", "lora_b"),
        head=config.hidden_size * config.vocab_size,
        attention=config.num_attention_heads * config.head_dim,
        layers=layers,
    )


def of_models(model: ModelConfig, value_model: ModelConfig, params: Params) -> Models:
    """Read off the shapes of policy and value model.

    Args:
        model: architecture of the policy.
        value_model: that of a separate value model.
        params: {"policy", "value"} as `models.apply` takes them, or their shapes.
    """
    separate = "trunk" in params.get("value", {})
    return Models(
        products(model, params["policy"]),
        products(value_model, params["value"]) if separate else None,
    )


class Pass(NamedTuple):
    """Size of a pass through a model, all rows together."""

    tokens: int
    attended: int  # tokens that each of them attends to
    read: int  # tokens whose hidden states are used


def forward(model: Products, size: Pass, head: bool = True) -> int:
    """Count the operations of a forward pass; with a `head` that predicts what comes after every token that is read."""
    adapted = 2 * size.tokens * model.adapter
    # In the last layer only tokens that are read attend to others.
    pairs = size.tokens * (model.layers - 1) + size.read
    return _linear(model, size, head) + adapted + 4 * pairs * size.attended * model.attention


def backward(model: Products, size: Pass, head: bool = True) -> int:
    """Count those of a backward pass: two products for each of the forward pass, or one where a weight is frozen."""
    frozen = _linear(model, size, head) if model.adapter else 0
    return 2 * forward(model, size, head) - frozen


def _linear(model: Products, size: Pass, head: bool) -> int:
    """Count the products of a forward pass with the model's own weights."""
    trunk = size.tokens * model.trunk - (size.tokens - size.read) * model.last
    return 2 * (trunk + size.read * model.head * head)


def sampling(policy: Products, shapes: Shapes) -> int:
    """Count a pass over every prompt, then one over each token drawn but the last; adapters are merged."""
    merged = policy._replace(adapter=0)
    prompts = Pass(
        tokens=shapes.prompts * shapes.prompt_length,
        attended=shapes.prompt_length,
        read=shapes.prompts,
    )
    tokens = shapes.completions * (shapes.longest_completion - 1)
    # A step attends to the whole cache, whose slots are there from the beginning.
    steps = Pass(
        tokens=tokens,
        attended=shapes.prompt_length + shapes.completion_length,
        read=tokens,
    )
    return forward(merged, prompts) + forward(merged, steps)


def scoring(config: TrainConfig, models: Models, shapes: Shapes) -> int:
    """Forward passes of the policy where `scores_policy` says so, of the reference and the value model."""
    size = _size(shapes)
    policy = forward(models.policy, size)
    reference = forward(models.policy._replace(adapter=0), size)
    total = policy if config.scores_policy else 0
    if config.rl.has_reference:
        total += reference
        # The exact KL has passes of its own, as a program that keeps whole distributions.
        if config.rl.has_full_kl:
            total += policy + reference
    # Values have one, too, also where their head is on the policy's trunk.
    if config.rl.spec.needs_values:
        value = models.policy if models.value is None else models.value
        total += forward(value, size, head=False)
    return total


def learning(config: TrainConfig, models: Models, shapes: Shapes) -> int:
    """Forward and backward passes of policy and value model in every epoch, none of them stopped early."""
    size = _size(shapes)
    total = forward(models.policy, size) + backward(models.policy, size)
    # A value head on the policy's trunk reads the hidden states that the policy's loss has computed.
    if models.value is not None:
        total += forward(models.value, size, head=False) + backward(models.value, size, head=False)
    return config.rl.num_ppo_epochs * total


def of_update(config: TrainConfig, models: Models, shapes: Shapes) -> int:
    """Count the operations of an update: sampling, scoring and learning; rewards are not counted.

    Args:
        config: hyper-parameters.
        models: shapes of its models.
        shapes: of its batch.
    """
    return (
        sampling(models.policy, shapes)
        + scoring(config, models, shapes)
        + learning(config, models, shapes)
    )


def _size(shapes: Shapes) -> Pass:
    """Count a pass over all sequences, in which the completions are predicted or valued."""
    return Pass(
        tokens=shapes.completions * shapes.sequence_length,
        attended=shapes.sequence_length,
        read=shapes.completions * shapes.completion_length,
    )


def shapes_of(prompt_ids: Any, completion_mask: Any, input_ids: Any) -> Shapes:
    """Read off the shapes of a batch.

    Args:
        prompt_ids: [G, P] int32.
        completion_mask: [B, C] bool, on the host.
        input_ids: [B, T] int32.
    """
    num_prompts, prompt_length = prompt_ids.shape
    num_completions, completion_length = completion_mask.shape
    return Shapes(
        prompts=num_prompts,
        prompt_length=prompt_length,
        completions=num_completions,
        completion_length=completion_length,
        longest_completion=int(completion_mask.sum(axis=1).max()),
        sequence_length=input_ids.shape[1],
    )
