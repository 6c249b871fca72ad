"""The loss of held-out rows: over all learned tokens, however they are cut into batches, on any devices."""

import jax
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import SFTConfig
from jaxppo.config.sources import replace
from jaxppo.data import EncodedRow
from jaxppo.errors import DataError
from jaxppo.evaluate.held_out import ReferenceLoss, encode_held_out
from jaxppo.nn import lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from tests.data.tokenizers import chat_tokenizer
from tests.evaluate.small_models import MODEL
from tests.peft_models import random_adapter

PARAMS = models.init_params(MODEL, jax.random.key(0))
SHAPE = LoraConfig(r=2, lora_alpha=8)
# Of very different lengths: a mean over rows or batches is another number.
SPLITS = {
    "test": [EncodedRow([3 + n, 5], [7 + n, 9] * n + [1]) for n in (0, 5, 1, 9, 2)],
    "marked": [
        EncodedRow([4], [5, 6, 7, 8], [True, False, False, True]),
        EncodedRow([9, 8, 7], [6, 5], None),
        EncodedRow([2], [3, 4], [False, False]),
    ],
    "nothing": [EncodedRow([4], [5, 6], [False, False])],
    "empty": [],
}


def expected(params, rows):
    """The mean negative log-likelihood and the number of tokens, token by token, each row by itself."""
    total, count = 0.0, 0
    for row in rows:
        ids = np.array([*row.prompt, *row.completion])
        logits = np.asarray(models.apply(MODEL, params, ids[None]).logits[0], np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        for place, is_learned in enumerate(row.loss_mask or [True] * len(row.completion), len(row.prompt)):
            if is_learned:
                total -= logprobs[place - 1, ids[place]]
                count += 1
    return total / count, count


def reference_loss(batch_size=8, mode="shard_map", num_devices=1, mesh=None):
    return ReferenceLoss(MODEL, DataParallel(mode, jax.local_devices()[:num_devices], mesh), 0, batch_size)


def check(results, params=PARAMS):
    assert set(results) == {"test", "marked"}  # the others have no token to learn
    for split, result in results.items():
        loss, tokens = expected(params, SPLITS[split])
        assert result["loss_tokens"] == tokens
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-5, err_msg=split)


@pytest.mark.parametrize(
    ("batch_size", "mode", "num_devices", "mesh"),
    [
        (8, "shard_map", 1, None),
        (2, "shard_map", 1, None),
        (1, "shard_map", 4, None),
        (8, "pmap", 2, None),
        (4, "fsdp", 4, "fsdp=2,tensor=2"),
    ],
)
def test_the_loss_is_the_mean_over_all_learned_tokens_of_a_split(batch_size, mode, num_devices, mesh):
    loss = reference_loss(batch_size, mode, num_devices, mesh)
    check(loss(loss._parallel.put(PARAMS), SPLITS))


def test_adapters_are_part_of_the_model_that_is_measured():
    adapted = lora.attach(PARAMS, random_adapter(MODEL, SHAPE), SHAPE.scale)
    assert abs(expected(adapted, SPLITS["test"])[0] - expected(PARAMS, SPLITS["test"])[0]) > 1e-2
    for num_devices in (1, 2):
        loss = reference_loss(2, num_devices=num_devices)
        check(loss(loss._parallel.put(adapted), SPLITS), adapted)


def test_fewer_rows_are_read_at_once_where_memory_is_short():
    loss = reference_loss()
    program, tried = loss._program, []

    def lacking(params, rows, weights):
        tried.append(rows.input_ids.shape)
        if len(weights) > 2:
            raise MemoryError
        return program(params, rows, weights)

    loss._program = lacking
    check(loss(PARAMS, SPLITS))
    # All rows of a length fit into one of few sizes; the longest are first.
    assert tried == [(6, 24), (3, 24), (1, 24), (1, 16), (1, 16), (1, 16), (1, 16), (1, 16), (1, 16), (1, 16)]
    assert loss.memory(SPLITS)["activations"] > 0 and loss.memory({"empty": []}) == {}


ROWS = [
    {"id": "long", "prompt": "on a", "completion": "stack b a ; unstack a b"},
    {"id": "prompt", "prompt": "on a on a on a on a", "completion": "stack"},
    {"id": "short", "prompt": "on b", "completion": "stack a"},
    {"id": "question", "prompt": "on b"},
]


@pytest.mark.parametrize(
    ("settings", "lengths", "told"),
    [
        ({}, [11, 11, 6], []),
        ({"max_length": 7}, [7, 6], ["2 of 4 rows longer than 7 tokens: 1 cut, 1 left out"]),
        ({"max_length": 7, "overlong": "drop"}, [6], ["2 of 4 rows longer than 7 tokens: 0 cut, 2 left out"]),
        ({"made_for": 7}, [7, 6], ["2 of 4 rows longer than 7 tokens: 1 cut, 1 left out"]),
        ({"made_for": 7, "max_length": 9}, [9, 6], ["2 of 4 rows longer than 9 tokens: 1 cut, 1 left out"]),
        ({"max_length": 2, "overlong": "drop"}, [], ["3 of 4 rows longer than 2 tokens: 0 cut, 3 left out"]),
    ],
)
def test_held_out_rows_are_encoded_as_those_of_training(settings, lengths, told):
    tokenizer = chat_tokenizer(template=None)
    settings = dict(settings)
    tokenizer.model_max_length = settings.pop("made_for", 10**30)
    template = data.make_chat_template(tokenizer, SFTConfig().data)
    config = replace(SFTConfig(), **settings)
    lines = []
    encoded = encode_held_out(config, MODEL, tokenizer, template, "test", ROWS, lines.append)
    assert [row.length for row in encoded] == lengths
    assert lines == [f"loss of split test: {line}" for line in ("1 of 4 rows left out: no completion", *told)]
    if lengths:
        made_for, _ = models.made_for(MODEL, tokenizer.model_max_length)
        max_prompt_length, limit = data.limits_of(config, made_for)
        learned = data.SupervisedData(ROWS[:3], tokenizer, 4, 0, max_prompt_length, template, limit)
        assert learned._rows == encoded


def test_held_out_rows_that_are_too_long_are_refused_where_those_of_training_are():
    tokenizer = chat_tokenizer(template=None)
    template = data.make_chat_template(tokenizer, SFTConfig().data)
    config = replace(SFTConfig(), max_length=6, overlong="error")
    with pytest.raises(DataError, match=r"^max_length: "):
        encode_held_out(config, MODEL, tokenizer, template, "test", ROWS)
