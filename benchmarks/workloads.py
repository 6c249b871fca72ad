"""What the benchmarks compute: sizes of models and batches, inputs as a user has them, and the least work they take."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Random models of one size for policy, reference, value and reward; one mini-batch per epoch.

    They are GPT-NeoX, or Llama with tied embeddings where heads share keys and values, or Qwen3 where heads also have
    a size of their own.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int | None = None  # heads of keys and values of a Llama; None: GPT-NeoX
    head_dim: int | None = (
        None  # of a Qwen3, which normalizes queries and keys; None: hidden / heads
    )
    inner: int | None = None  # hidden size of the MLP; None: four times that of the model
    # Of adapters on all linear layers of policy and value model; None: all weights learn
    rank: int | None = None
    batch: int
    prompt: int  # prompts have half of it to all of it, in tokens
    response: int  # every completion has that many tokens: a random model hardly ever ends one
    dtype: str = "float32"
    epochs: int = 4
    parts: int = 1  # micro-batches of TRL's update; the others choose their own

    @property
    def head_size(self) -> int:
        """Numbers of one head."""
        return self.head_dim or self.hidden // self.heads

    def to_json(self) -> str:
        """All fields, as a process of another project reads them."""
        return json.dumps(dataclasses.asdict(self))


SMOLLM2 = Workload(
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    inner=1536,
    vocab=49152,
    batch=8,
    prompt=200,
    response=60,
    epochs=1,
)
"""The shapes of SmolLM2-135M."""

PYTHIA_160M = Workload(
    layers=12,
    hidden=768,
    heads=12,
    vocab=50304,
    batch=64,
    prompt=512,
    response=53,
    dtype="bfloat16",
)
PYTHIA_1B = dataclasses.replace(PYTHIA_160M, layers=16, hidden=2048, heads=8)

WORKLOADS = {
    "W1": Workload(layers=6, hidden=128, heads=4, vocab=50304, batch=32, prompt=64, response=53),
    "W2": Workload(layers=4, hidden=256, heads=4, vocab=512, batch=64, prompt=128, response=96),
    "W3": SMOLLM2,
    "W3-adapters": dataclasses.replace(SMOLLM2, rank=16),
    "W4": dataclasses.replace(SMOLLM2, prompt=800),
    "W4-adapters": dataclasses.replace(SMOLLM2, prompt=800, rank=16),
    "gpu-160m": dataclasses.replace(PYTHIA_160M, batch=256, response=128),
    "gpu-1b": dataclasses.replace(PYTHIA_1B, batch=128, response=128),
    "pythia-160m": PYTHIA_160M,
    # The parts of these three are estimates, not measured: half of an H200's memory should do for TRL.
    "smollm2-135m": dataclasses.replace(
        SMOLLM2, batch=64, prompt=512, response=53, epochs=4, dtype="bfloat16", parts=2
    ),
    "qwen3-0.6b": Workload(
        layers=28,
        hidden=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        inner=3072,
        vocab=151936,
        batch=64,
        prompt=512,
        response=53,
        dtype="bfloat16",
        parts=8,
    ),
    "pythia-1b": dataclasses.replace(PYTHIA_1B, parts=8),
    "tiny": Workload(layers=2, hidden=64, heads=2, vocab=1000, batch=8, prompt=16, response=8),
}


def shrink(work: Workload) -> Workload:
    """A model of the same kind, and a batch, that take seconds on a CPU."""
    return dataclasses.replace(
        work,
        layers=2,
        hidden=64,
        heads=2,
        kv_heads=work.kv_heads and 1,
        head_dim=work.head_dim and 48,
        inner=work.inner and 96,
        vocab=1000,
        batch=8,
        prompt=16,
        response=8,
        dtype="float32",
    )


def model_config(work: Workload) -> Any:
    """The architecture that all four models share."""
    from jaxppo.nn.gpt_neox import GPTNeoXConfig
    from jaxppo.nn.llama_kinds import LlamaConfig

    sizes: dict[str, Any] = {
        "vocab_size": work.vocab,
        "hidden_size": work.hidden,
        "num_hidden_layers": work.layers,
        "num_attention_heads": work.heads,
        "intermediate_size": work.inner or 4 * work.hidden,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    if work.kv_heads is None:
        return GPTNeoXConfig(**sizes)
    return LlamaConfig(
        **sizes,
        model_type="llama" if work.head_dim is None else "qwen3",
        num_key_value_heads=work.kv_heads,
        head_dim=work.head_size,
        tie_word_embeddings=True,
    )


def write_inputs(work: Workload, folder: Path) -> None:
    """Models with random weights, a tokenizer and 512 prompts, in the files that a run reads."""
    import jax
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from jaxppo import hf
    from jaxppo.models import init_params

    # No vocabulary padded beyond them
    words = {"<eos>": 0, "<pad>": 1} | {f"w{i}": i for i in range(2, work.vocab)}
    core = Tokenizer(models.WordLevel(words, unk_token="w2"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")
    config = model_config(work)
    for name, head, seed in (("policy", "lm", 0), ("value", "score", 1), ("reward", "score", 2)):
        hf.save_pretrained(
            folder / name, config, init_params(config, jax.random.key(seed), head), tokenizer
        )
    rng = np.random.default_rng(0)
    lengths = rng.integers(work.prompt // 2, work.prompt + 1, 512)
    lengths[0] = work.prompt  # the bucket of the prompts is the same whatever else is drawn
    prompts = [
        " ".join(f"w{i}" for i in rng.integers(2, min(500, work.vocab), length))
        for length in lengths
    ]
    for split, rows in (("train", prompts), ("test", prompts[:2])):
        lines = (
            json.dumps({"id": f"{split}-{i}", "prompt": prompt}) for i, prompt in enumerate(rows)
        )
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def train_config(work: Workload, folder: Path) -> Any:
    """The run on `write_inputs(work, folder)` as `python -m jaxppo.train` would be asked for it."""
    from jaxppo.config import TrainConfig
    from jaxppo.config.sources import replace

    adapters = {} if work.rank is None else {"use_peft": True, "lora_r": work.rank}
    return replace(
        TrainConfig(),
        **adapters,
        dataset=str(folder),
        train_split="train",
        eval_splits=("test",),
        sft_model_path=str(folder / "policy"),
        value_model_path=str(folder / "value"),
        reward_funcs=("model",),
        reward_model_path=str(folder / "reward"),
        total_episodes=work.batch * 1000,
        batch_size=work.batch,
        num_ppo_epochs=work.epochs,
        response_length=work.response,
        missing_eos_penalty=1.0,
        dtype=work.dtype,
        quiet=True,
    )


def products(work: Workload) -> list[tuple[tuple[int, int, int, int], int]]:
    """The matrix products of an update, ((batch, m, k, n), how often): [m, k] x [k, n], `batch` of them at once.

    In the last layer tokens that predict nothing have keys and values only.

    Sampling: a pass over the prompts, then one token per row and step. Scoring: a pass of the reference, the value and
    the reward model each (the sampler's log-probabilities are kept). Learning: forward and backward of policy and value
    model in every epoch; a backward pass has two products for each of the forward pass, and one where weights are
    frozen under an adapter, which has products of its own.
    """
    d, heads, rows = work.hidden, work.heads, work.batch
    inner, kv_heads, head = work.inner or 4 * d, work.kv_heads or heads, work.head_size
    all_heads = heads * head
    # The second is the gate
    widening = [(d, inner)] if work.kv_heads is None else [(d, inner), (d, inner)]
    length = work.prompt + work.response
    found: dict[tuple[int, int, int, int], int] = {}

    def add(shape: tuple[int, int, int, int], times: int) -> None:
        if times:
            found[shape] = found.get(shape, 0) + times

    def matrix(m: int, k: int, n: int, forward: int, backward: int, frozen: bool = False) -> None:
        add((1, m, k, n), forward)
        add((1, m, n, k), backward)
        add((1, k, m, n), 0 if frozen else backward)

    def linear(m: int, k: int, n: int, forward: int, backward: int) -> None:
        matrix(m, k, n, forward, backward, frozen=work.rank is not None)
        if work.rank is not None and backward:  # elsewhere adapters can be merged, or are not there
            matrix(m, k, work.rank, forward, backward)
            matrix(m, work.rank, n, forward, backward)

    def layers(count: int, tokens: int, seen: int, read: int, forward: int, backward: int) -> None:
        passes = (count * forward, count * backward)
        if work.kv_heads is not None:
            linear(rows * read, d, all_heads, *passes)
            for _ in range(2):
                linear(rows * tokens, d, kv_heads * head, *passes)
        elif read == tokens:
            linear(rows * tokens, d, 3 * d, *passes)
        else:
            linear(rows * tokens, d, 2 * d, *passes)
            linear(rows * read, d, d, *passes)
        for k, n in ((all_heads, d), *widening, (inner, d)):
            linear(rows * read, k, n, *passes)
        queries = heads // kv_heads * read  # that share keys and values
        add((rows * kv_heads, queries, head, seen), count * (forward + 2 * backward))
        add((rows * kv_heads, queries, seen, head), count * (forward + 2 * backward))

    def trunk(tokens: int, seen: int, read: int, forward: int, backward: int) -> None:
        layers(work.layers - 1, tokens, seen, tokens, forward, backward)
        layers(1, tokens, seen, read, forward, backward)

    trunk(work.prompt, work.prompt, 1, 1, 0)
    trunk(1, length, 1, work.response - 1, 0)
    matrix(rows, d, work.vocab, work.response, 0)
    trunk(length, length, work.response, 2, 0)
    trunk(length, length, 1, 1, 0)
    matrix(rows * work.response, d, work.vocab, 1, 0)
    trunk(length, length, work.response, 2 * work.epochs, 2 * work.epochs)
    matrix(
        rows * work.response, d, work.vocab, work.epochs, work.epochs, frozen=work.rank is not None
    )
    return list(found.items())


def flops(work: Workload) -> float:
    """Floating-point operations of `products`."""
    return float(sum(2 * b * m * k * n * times for (b, m, k, n), times in products(work)))
