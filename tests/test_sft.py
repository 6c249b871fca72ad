"""Supervised fine-tuning: the step, and the rows that it learns from."""

import functools

import jax
import numpy as np
import pytest

from jaxppo import data, models, sft
from jaxppo.config import SFTConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.rl import optimizer, padding, update
from jaxppo.rl.supervised import SFT
from tests.device_modes import MODEL
from tests.one_layer import ONE_LAYER

ROWS = [
    {"prompt": "<init> clear a <goal> on a b <plan>", "completion": "stack a b ; " * n + "pick-up a"} for n in range(5)
]
CONFIG = replace(SFTConfig(), batch_size=8, learning_rate=1e-2, total_episodes=80)
PARAMS = jax.device_get(models.init_params(MODEL, jax.random.key(0)))


@functools.cache
def one_step(num_devices: int, is_cut: bool = False):
    """What a step computes and leaves behind, and in how many micro-batches."""
    words = data.word_tokenizer({word for row in ROWS for word in f"{row['prompt']} {row['completion']}".split()})
    supervised = data.SupervisedData(ROWS, words, CONFIG.batch_size, 0, 64)
    parallel = DataParallel(devices=jax.devices()[:num_devices])
    state = update.init_state({"policy": jax.tree.map(np.copy, PARAMS)}, optimizer.make_optimizer(CONFIG.optimizer))
    learner = SFT(CONFIG, MODEL, parallel, supervised.length_gaps if is_cut else ())
    batch = learner.weighted(supervised.batch(0))
    after, stats = learner.program(parallel.put(state), parallel.put(batch, 2))
    return batch, jax.device_get(after.params), jax.device_get(stats)


@pytest.mark.full
@pytest.mark.parametrize(("num_devices", "is_cut"), [(1, False), (2, True)])
def test_micro_batches_that_fit_the_cache_change_nothing(monkeypatch, num_devices, is_cut):
    (rows, weights), params, stats = one_step(1)
    assert weights.shape[:3] == (1, 1, 8)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)
    assert stats["grad_norm"] > 0.01
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 2)
    monkeypatch.setattr(padding, "SEQUENCE_BUCKET", 1)
    apply, columns = models.apply, set()

    def spy(config, params, input_ids, **options):
        columns.add(input_ids.shape[1])
        return apply(config, params, input_ids, **options)

    monkeypatch.setattr(models, "apply", spy)
    (cut, _), cut_params, cut_stats = one_step.__wrapped__(num_devices, is_cut)
    assert (len(columns) > 1) == is_cut
    assert cut.input_ids.shape[:3] == (1, 4 // num_devices, 2 * num_devices)
    np.testing.assert_array_equal(cut.input_ids.reshape(8, -1), rows.input_ids.reshape(8, -1))
    for name, value in stats.items():
        np.testing.assert_allclose(cut_stats[name], value, rtol=0, atol=1e-5, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), cut_params, params)


def test_the_loss_is_the_mean_over_all_completion_tokens():
    (rows, weights), _, stats = one_step(1)
    rows, weights = jax.tree.map(lambda x: x[0, 0], (rows, weights))
    logits = models.apply(MODEL, PARAMS, rows.input_ids).logits
    total = count = 0.0
    for row in range(len(rows.input_ids)):
        for at in np.flatnonzero(rows.completion_mask[row]):
            before = rows.prompt_lengths[row] + at - 1
            total -= jax.nn.log_softmax(logits[row, before])[rows.completion_ids[row, at]]
            count += 1
    assert count == np.sum(weights > 0)
    np.testing.assert_allclose(stats["loss"], total / count, rtol=1e-5)


def test_a_model_is_read_into_its_shards():
    config = replace(SFTConfig(), model_path=ONE_LAYER)
    start = sft.start_model(config, DataParallel("fsdp").placement)
    kernels = [leaf for leaf in jax.tree.leaves(start.params) if leaf.ndim == 2]
    assert kernels and all(leaf.addressable_shards[0].data.size * 4 == leaf.size for leaf in kernels)


@pytest.mark.parametrize(
    ("family", "tied", "has_head"), [("gpt_neox", None, True), ("gpt_neox", True, False), ("gpt2", None, False)]
)
def test_a_fresh_model_ties_its_embeddings_where_its_settings_or_its_family_say_so(family, tied, has_head):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "dataset": "stream:ferry"}
    start = sft.start_model(replace(SFTConfig(), model_type=family, tie_word_embeddings=tied, **sizes))
    assert ("lm_head" in start.params) == has_head
