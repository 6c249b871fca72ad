"""Models that are small or bad enough for evaluations to have something to say."""

import jax
import numpy as np

from jaxppo import hf, models
from jaxppo.nn.gpt_neox import GPTNeoXConfig

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 1.0,
}
MODEL = GPTNeoXConfig(**SIZES, rotary_pct=1.0)


def write_spoiled(folder, noise):
    """Write the shipped model with noise on its weights: it plans, but worse."""
    policy = hf.load_policy("blocksworld-sft")
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + noise * rng.standard_normal(x.shape, np.float32), policy.params)
    hf.save_pretrained(folder, policy.config, params, policy.tokenizer)
    return folder


def says(token, model=MODEL):
    """Parameters of a model that says one token again and again."""
    params = jax.device_get(models.init_params(model, jax.random.key(1)))
    norm = {"scale": np.zeros(16, np.float32), "bias": np.ones(16, np.float32)}
    kernel = np.zeros((16, model.vocab_size), np.float32)
    kernel[:, token] = 1.0
    return {"trunk": params["trunk"] | {"final_layer_norm": norm}, "lm_head": {"kernel": kernel}}


def logits_without_cache(params):
    """A function from token ids to the logits of the next token, computed from all of them."""
    apply = jax.jit(lambda ids: models.apply(MODEL, params, ids).logits)

    def logits_after(ids):
        padded = np.zeros((1, 128), np.int32)
        padded[0, : len(ids)] = ids
        return np.asarray(apply(padded)[0, len(ids) - 1])

    return logits_after


def likeliest_words(logits_after, tokenizer, prompt, length):
    """The words that greedy decoding writes after a prompt, up to the end of sequence."""
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    for _ in range(length):
        token = int(np.argmax(logits_after(ids)))
        if token == tokenizer.eos_token_id:
            break
        ids.append(token)
    return " ".join(tokenizer.convert_ids_to_tokens(ids[start:]))
