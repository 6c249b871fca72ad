"""Every family against transformers: logits, gradients, scores and greedy texts; and what gradients cost."""

import copy
import dataclasses
import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxppo import hf, models
from jaxppo.nn import FAMILIES, ModelConfig, ModelSource
from jaxppo.nn.layers import ACTIVATIONS, Keys, Linear, RMSNorm, project_qkv
from tests import quick_first
from tests.hf.families import FILES, SMALL
from tests.torch_models import (
    RAW,
    assert_equal_trees,
    from_torch,
    next_token_loss,
    ragged_batch,
    torch,
    torch_logits,
    torch_loss,
    torch_model,
    transformers,
)

LENGTHS = np.array([20, 3, 17, 1])
"""Beyond every window and, of rotary settings, every original length."""
STEPS = 20
SHAPES = {"num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings"}
TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id"}
NOT_COMPUTED = SHAPES | TOKENS | {"model_type", "max_position_embeddings", "initializer_range", "sliding_window"}
"""Settings that decide which arrays there are, or nothing that is computed."""


def test_every_family_is_in_the_table():
    assert {small.config.model_type for small in SMALL.values()} == set(FAMILIES)


class Model(NamedTuple):
    """One model, in torch and here."""

    raw: dict[str, Any]
    theirs: Any
    config: ModelConfig
    params: Any


@pytest.fixture(scope="module", params=quick_first(len(SMALL), FILES))
def model(request, tmp_path_factory):
    """The language model of a row of the table."""
    raw = FILES[request.param]
    theirs = torch_model(raw)
    return Model(raw, theirs, *from_torch(theirs, tmp_path_factory.mktemp("model"), raw))


def close(ours, theirs, share):
    """Within so much of the largest number."""
    largest = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, atol=share * largest, rtol=0)
    return largest


def test_logits_gradients_and_scores_are_those_of_transformers(model, tmp_path):
    raw, theirs, config, params = model
    classifier = torch_model(raw, head="score")
    classifier.base_model.load_state_dict(theirs.base_model.state_dict())
    _, with_score = from_torch(classifier, tmp_path / "score", raw)
    assert_equal_trees(with_score["trunk"], params["trunk"])

    @partial(jax.value_and_grad, has_aux=True)
    def loss(params, ids, mask):
        output = models.apply(config, params, ids, attention_mask=mask)
        return next_token_loss(output.logits, ids, mask), output

    for side in ("right", "left"):
        ids, mask = ragged_batch(side, LENGTHS)
        (value, output), gradients = loss(params, jnp.asarray(ids), jnp.asarray(mask))
        assert close(output.logits[mask], torch_logits(theirs, ids, mask)[mask], 1e-4) > 1
        scores = models.scores(with_score, output.hidden)
        assert scores.shape == ids.shape
        # transformers finds the last token by its id.
        expected = torch_logits(classifier, np.where(mask, ids, config.pad_token_id), mask)[:, 0]
        last = LENGTHS - 1 if side == "right" else -1
        assert close(scores[np.arange(len(LENGTHS)), last], expected, 1e-4) > 0.1

    computed = torch_loss(theirs, ids, mask)
    computed.backward()
    np.testing.assert_allclose(value, computed.item(), rtol=1e-5)
    as_gradients = copy.deepcopy(theirs)
    with torch.no_grad():  # through the folder the gradients reach the places of their parameters
        for place, parameter in zip(as_gradients.parameters(), theirs.parameters(), strict=True):
            place.copy_(parameter.grad)
    _, expected = from_torch(as_gradients, tmp_path / "gradients", raw)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4 * largest, rtol=0), gradients, expected)
    kernels = [leaf for leaf in jax.tree.leaves(expected) if leaf.ndim > 1]  # a bias of all keys changes no softmax
    assert min(np.abs(leaf).max() for leaf in kernels) > 1e-3 * largest


def test_every_setting_shows_in_the_logits_of_transformers(model):
    """Or the comparison would say nothing of it."""
    config = dataclasses.replace(model.config, source=ModelSource())
    ids, mask = ragged_batch("left", LENGTHS)
    logits = torch_logits(model.theirs, ids, mask)
    for field in dataclasses.fields(config):
        if field.name in NOT_COMPUTED or field.default is dataclasses.MISSING:
            continue
        changes = {field.name: field.default}
        if field.name == "window_layers":
            changes["sliding_window"] = None
        plain = dataclasses.replace(config, **changes)
        if plain != config:
            other = torch_model(FAMILIES[config.model_type].to_hf(plain))
            other.load_state_dict(model.theirs.state_dict())
            assert np.abs(torch_logits(other, ids, mask) - logits)[mask].max() > 1e-2, field.name


def test_greedy_texts_are_those_of_generate(model):
    """One token at a time, from the cache of those before."""
    _, theirs, config, params = model
    ids, mask = ragged_batch("left", LENGTHS)
    expected = theirs.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask.astype(int)),
        do_sample=False,
        max_new_tokens=STEPS,
        min_new_tokens=STEPS,
        eos_token_id=None,
    ).numpy()
    rows, prompt = ids.shape
    slots = np.pad(mask, ((0, 0), (0, STEPS)), constant_values=True)
    cache = models.init_cache(config, rows, prompt + STEPS)
    assert cache[0][0].shape[1] == config.num_key_value_heads

    run = partial(models.apply, config, params, attention_mask=slots)
    step = jax.jit(lambda token, cache, i: run(token, cache=cache, cache_index=i))
    output = run(jnp.asarray(ids), cache=cache)
    texts, logits = [ids], [output.logits]
    for i in range(prompt, prompt + STEPS):
        texts.append(np.argmax(logits[-1][:, -1:], axis=-1))
        output = step(jnp.asarray(texts[-1]), output.cache, i)
        logits.append(output.logits)
    np.testing.assert_array_equal(np.concatenate(texts, axis=1), expected)
    assert len(np.unique(expected[:, prompt:])) > 4
    logits = np.concatenate(logits, axis=1)
    close(logits[slots], torch_logits(theirs, expected, slots)[slots], 1e-4)


def test_activations_are_those_of_transformers():
    x = np.linspace(-9, 9, 1000, dtype=np.float32)  # without the kinks, at whole numbers

    @jax.jit
    def ours(x):
        return {name: jax.vmap(jax.value_and_grad(function))(x) for name, function in ACTIVATIONS.items()}

    for name, (values, gradients) in ours(x).items():
        variable = torch.tensor(x, requires_grad=True)
        expected = transformers.activations.ACT2FN[name](variable)
        expected.sum().backward()
        np.testing.assert_allclose(values, expected.detach().numpy(), atol=2e-6, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(gradients, variable.grad.numpy(), atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(("shape", "axis"), [((3, 2, 4), 0), ((2, 3, 4), 1)], ids=["parts first", "heads first"])
def test_the_gradient_of_queries_keys_and_values_moves_no_more_than_it_must(shape, axis):
    """Axes contracted together would be transposed, and a part padded to all three is moved at three times its size."""
    config = hf.config_from_hf(RAW["gpt_neox"])
    graph, weights = nnx.split(Linear(config, 8, 24, rngs=nnx.Rngs(0)))

    def loss(weights, x):
        query, key, value = project_qkv(nnx.merge(graph, weights), x, None, shape, axis)
        return jnp.sum(query * key * value)

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(weights, jnp.ones((5, 7, 8))).as_text()
    contracted = re.findall(r"dot_general.* contracting_dims = \[([\d, ]*)\]", text)
    assert len(contracted) == 3 and all("," not in axes for axes in contracted)
    padded = re.findall(r"stablehlo.pad .* low = \[([\d, ]*)\], high = \[([\d, ]*)\]", text)
    assert not re.search("[1-9]", str(padded))


def test_keys_are_those_of_flax():
    ours, theirs = Keys(3), nnx.Rngs(3)
    for _ in range(5):
        np.testing.assert_array_equal(jax.random.key_data(ours.params()), jax.random.key_data(theirs.params()))


def test_gemma_rounds_norms_and_embeddings_where_transformers_does():
    """In bfloat16, where 1 + weights and the root of D are other numbers; within float32 no order shows."""
    config = SMALL["gemma3_text"].config
    theirs = torch_model(FILES["gemma3_text"], dtype="bfloat16").model
    x = torch.randn(64, config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(config.vocab_size)
    with torch.no_grad():
        expected = theirs.norm(x), theirs.embed_tokens(ids)

    def ours(tensor):
        return jnp.asarray(tensor.detach().float().numpy(), jnp.bfloat16)

    norm = RMSNorm(config.hidden_size, config.layer_norm_eps, adds_one=True)
    norm.scale = nnx.Param(ours(theirs.norm.weight))
    trunk = FAMILIES["gemma3_text"].trunk(config, Keys(0))
    trunk.embed_in.embedding = nnx.Param(ours(theirs.embed_tokens.weight))
    embedded, _ = trunk.embed(jnp.asarray(ids.numpy())[None], jnp.zeros((1, len(ids)), int))
    for computed, wanted in zip((norm(ours(x)), embedded[0]), expected, strict=True):
        assert computed.dtype == jnp.bfloat16
        np.testing.assert_array_equal(computed.astype(np.float32), wanted.float().numpy())
