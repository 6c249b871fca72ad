"""Tokens per second of sampling, beside `generate` of transformers (torch) and beside what the memory allows.

    python benchmarks/decode.py --workload W1 --turns 5

The same model (random weights, read from one folder), the same left-padded prompts, the same number of new tokens for
every row, sampled at temperature 0.7 with a KV cache. Contestants take turns (turns.py). One more contestant reads a
large array, which gives the memory's bandwidth; a step has to read all weights once and all keys and values,
which gives the least time that sampling can take. The last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from turns import compare, serve, take_turns
from workloads import WORKLOADS, Workload, model_config, write_inputs

TEMPERATURE = 0.7
BANDWIDTH_MIB = 512
WARM_UP = 2


def make_prompts(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Left-padded ids and their mask, [batch, prompt]."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(work.prompt // 2, work.prompt + 1, work.batch)
    mask = np.arange(work.prompt)[None] >= work.prompt - lengths[:, None]
    ids = rng.integers(2, work.vocab, mask.shape, dtype=np.int32)
    return np.where(mask, ids, 1).astype(np.int32), mask


def jaxppo_contestant(work: Workload, folder: Path) -> None:
    """This package: the program that a run samples with."""
    from functools import partial

    import jax

    from jaxppo import hf
    from jaxppo.rl import ops, rollout
    from jaxppo.types import PromptBatch

    jax.config.update(
        "jax_default_matmul_precision", "highest" if work.dtype == "float32" else None
    )
    loaded = hf.load_model(folder / "policy", head="lm")
    prompts = PromptBatch(*make_prompts(work))
    generate = jax.jit(
        partial(
            rollout.generate, model=loaded.config, stop_ids=(), pad_id=1, temperature=TEMPERATURE
        )
    )
    uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))

    def turn(number: int) -> None:
        done = generate(
            loaded.params, prompts, uniforms(jax.random.key(number), work.batch, work.response)
        )
        assert np.asarray(done.completion_mask).all()

    serve(turn)


def hf_contestant(work: Workload, folder: Path) -> None:
    """`generate` of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, work.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        folder / "policy", dtype=dtype, attn_implementation="sdpa"
    ).to(device)
    ids, mask = (torch.tensor(array, device=device).long() for array in make_prompts(work))

    def turn(number: int) -> None:
        torch.manual_seed(number)
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
                min_new_tokens=work.response,
                max_new_tokens=work.response,
                pad_token_id=1,
            )
        assert out.shape[1] == work.prompt + work.response

    serve(turn)


def bandwidth_contestant(work: Workload, folder: Path) -> None:
    """Reads `BANDWIDTH_MIB` once."""
    del work, folder
    import jax
    import jax.numpy as jnp

    array = jnp.ones(BANDWIDTH_MIB * 2**18)
    total = jax.jit(jnp.sum)
    serve(lambda number: total(array).block_until_ready())


CONTESTANTS = {"jaxppo": jaxppo_contestant, "hf": hf_contestant, "bandwidth": bandwidth_contestant}


def bytes_read(work: Workload) -> int:
    """What all steps of sampling have to read: the weights that a token uses, and the keys and values before it."""
    size = 2 if work.dtype == "bfloat16" else 4
    keys = (
        work.kv_heads or work.heads
    ) * work.head_size  # of a token; as many numbers are its values
    attention = 2 * work.hidden * (work.heads * work.head_size + keys)
    matrices = 2 if work.kv_heads is None else 3  # a Llama's MLP has a gate
    mlp = matrices * work.hidden * (work.inner or 4 * work.hidden)
    weights = work.layers * (attention + mlp) + work.hidden * work.vocab
    seen = sum(work.prompt + step for step in range(work.response))
    return size * (work.response * weights + seen * work.batch * 2 * work.layers * keys)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    work = WORKLOADS[args.workload]
    if args.contestant is not None:
        CONTESTANTS[args.contestant](work, args.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(work, Path(folder))
        ours = [
            sys.executable,
            __file__,
            "--workload",
            args.workload,
            "--folder",
            folder,
            "--contestant",
        ]
        results = take_turns({name: [*ours, name] for name in CONTESTANTS}, args.turns, WARM_UP)
    compared = compare(results, "jaxppo")
    for name in [name for name in compared if name.startswith("bandwidth")]:
        del compared[name]
    tokens = work.batch * work.response
    rates = {
        f"{name}_tokens_per_s": round(
            tokens / statistics.median(turn["seconds"] for turn in results[name]), 1
        )
        for name in ("jaxppo", "hf")
    }
    bandwidth = (
        BANDWIDTH_MIB * 2**20 / statistics.median(turn["seconds"] for turn in results["bandwidth"])
    )
    limits = {
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 2),
        "memory_limit_s": round(bytes_read(work) / bandwidth, 4),
        "memory_limit_tokens_per_s": round(tokens * bandwidth / bytes_read(work), 1),
        "parameters": sum(int(np.prod(shape)) for shape in _shapes(work)),
    }
    print(
        json.dumps({"workload": args.workload, "turns": args.turns} | compared | rates | limits),
        flush=True,
    )


def _shapes(work: Workload) -> list[tuple[int, ...]]:
    import jax

    from jaxppo.models import init_params

    tree = jax.eval_shape(lambda key: init_params(model_config(work), key, "lm"), jax.random.key(0))
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


if __name__ == "__main__":
    main()
