"""Small models as transformers makes them, what it computes with them, and the folders it writes."""

import json
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.hf import files as model_files
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(
    1
)  # several would wait for each other in loops, which takes most of the time of models this small

SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = SPECIAL | {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
GPT2_SIZES = SPECIAL | {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
RAW = {
    "gpt_neox": {"model_type": "gpt_neox"} | SIZES,
    "gpt2": {"model_type": "gpt2"} | GPT2_SIZES,
    "llama": {"model_type": "llama", "num_key_value_heads": 2} | SIZES,
}
"""Content of `config.json`: a model of each kind that says no more than its sizes. `hf/families.py` has many more."""
CONFIGS = {
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt2": GPT2Config(**(SIZES | {"intermediate_size": 128, "max_position_embeddings": 128})),
    "llama": LlamaConfig(num_key_value_heads=2, head_dim=8, **SIZES),
}
"""What they are read as."""
LENGTHS = np.array([11, 3, 7, 1])
"""Ragged rows, one full and one of a single token."""

AUTO = {
    "lm": transformers.AutoModelForCausalLM,
    "score": transformers.AutoModelForSequenceClassification,
    None: transformers.AutoModel,
}

assert_equal_trees = partial(jax.tree.map, np.testing.assert_array_equal)


def torch_model(raw, head="lm", dtype="float32"):
    """A transformers model whose parameters are all different, and so large that every option shows in its outputs."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(raw)), num_labels=1)
    # The fused kernels know nothing of `reorder_and_upcast_attn`.
    eager = {"attn_implementation": "eager"} if raw.get("reorder_and_upcast_attn") else {}
    torch.manual_seed(0)
    model = AUTO[head].from_config(config, **eager).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(getattr(torch, dtype))


def from_torch(model, folder, raw):
    """Our configuration and parameters, from a folder with exactly the `config.json` that transformers was given."""
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(raw | {"architectures": [type(model).__name__]}))
    return hf.load_pretrained(folder)


def ragged_batch(side, lengths=LENGTHS, seed=0):
    """(ids, mask), padded on the given side; the padding holds ordinary tokens that must not leak."""
    width = lengths.max()
    ids = np.random.default_rng(seed).integers(3, SIZES["vocab_size"], (len(lengths), width))
    right = np.arange(width) < lengths[:, None]
    return ids, right if side == "right" else right[:, ::-1]


def torch_positions(mask):
    return torch.tensor(np.clip(mask.cumsum(1) - 1, 0, None))


def torch_inputs(ids, mask):
    """Arguments of a transformers model that make it count positions as we do."""
    mask_ids = torch.tensor(mask.astype(int))
    return {"input_ids": torch.tensor(ids), "attention_mask": mask_ids, "position_ids": torch_positions(mask)}


def torch_logits(model, ids, mask):
    with torch.no_grad():
        return model(**torch_inputs(ids, mask)).logits.numpy()


def next_token_loss(logits, ids, mask):
    """Ours: the mean over the real tokens that follow a real one."""
    logprobs = jax.nn.log_softmax(logits[:, :-1])
    picked = jnp.take_along_axis(logprobs, jnp.asarray(ids)[:, 1:, None], axis=-1)[..., 0]
    counted = mask[:, 1:] & mask[:, :-1]
    return -jnp.where(counted, picked, 0).sum() / counted.sum()


def torch_loss(model, ids, mask):
    """The same of transformers or PEFT."""
    counted = np.pad(mask[:, 1:] & mask[:, :-1], ((0, 0), (1, 0)))
    return model(**torch_inputs(ids, mask), labels=torch.tensor(np.where(counted, ids, -100))).loss


@lru_cache
def _shapes(config, head):
    return jax.eval_shape(lambda: models.init_params(config, jax.random.key(0), head))


def random_params(config, head="lm", seed=0, scale=0.2):
    """Parameters drawn without compiling anything: those of norms around 1, all others around 0, none of them equal."""
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        return jnp.asarray((path[-1].key == "scale") + scale * generator.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, _shapes(config, head))


def refused(named, call, *arguments, **more):
    """The call raises a ModelError of one line in which this is named."""
    with pytest.raises(ModelError, match=named) as caught:
        call(*arguments, **more)
    assert "\n" not in str(caught.value)


def read(folder, file="config.json"):
    return json.loads((folder / file).read_text())


def edit_json(file, **changes):
    """Change keys of a JSON file; those that become "REMOVE" go."""
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in raw.items() if value != "REMOVE"}))


def edit_config(folder, **changes):
    edit_json(folder / "config.json", **changes)


def edit_tensors(file, changes):
    """Change tensors of a safetensors file; those that become None go."""
    about = model_files.read_metadata(file)
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file, about)


def assert_equal_tensors(first, second):
    """Two folders hold the same tensors: names, dtypes, shapes and bytes."""
    first, second = (model_files.open_tensors(folder) for folder in (first, second))
    assert set(first) == set(second)
    for name, tensor in first.items():
        one, other = tensor.read(...), second[name].read(...)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert one.tobytes() == other.tobytes(), name


def word_tokenizer(size=5, last=None, **special):
    """A tokenizer of `size` words, the last of which may have another id than size - 1."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<s>", "<pad>", "</s>", "put-down", "b1", *(f"w{i}" for i in range(5, size))]
    ids = {word: i for i, word in enumerate(words)} | {words[-1]: last or size - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
