"""Peak memory and time of the log-probabilities of completion tokens, in chunks against the whole [B, T, V] array.

    python benchmarks/logprobs.py --rows 64 --tokens 512 --vocab 50304 --hidden 128

`forward` is what scoring needs, `gradient` the learning step's: forward and backward with respect to hidden states and
head. Memory is what XLA plans for temporaries, read from the compiled program, as a share of the fp32 [B, T, V] array;
inputs and results come on top. Time alternates the two in one process, on as many rows as leave the naive way room in
memory. One JSON line per case.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.nn.head_logprobs import token_logprobs

jax.config.update("jax_default_matmul_precision", "highest")


def naive(hidden: Any, kernel: Any, ids: Any) -> tuple[Any, Any]:
    """All logits at once."""
    log_p = jax.nn.log_softmax(jnp.matmul(hidden, kernel), axis=-1)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return jnp.take_along_axis(log_p, ids[..., None], axis=-1)[..., 0], entropy


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gradient of a weighted sum of the log-probabilities; the entropy is a metric, as in a run by default."""

    def loss(hidden: Any, kernel: Any, ids: Any) -> tuple[Any, Any]:
        logprobs, entropy = function(hidden, kernel, ids)
        weights = jnp.cos(jnp.arange(logprobs.size).reshape(logprobs.shape))
        return jnp.sum(logprobs * weights), jnp.mean(entropy)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


CASES = {"forward": lambda function: function, "gradient": with_gradient}
WAYS = {"chunked": token_logprobs, "naive": naive}


def inputs(rows: int, args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Hidden states, head and ids."""
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (rows, args.tokens, args.hidden))
    kernel = 0.02 * jax.random.normal(keys[1], (args.hidden, args.vocab))
    return hidden, kernel, jax.random.randint(keys[2], (rows, args.tokens), 0, args.vocab)


def planned_bytes(program: Callable[..., Any], rows: int, args: argparse.Namespace) -> int:
    """Temporaries of the compiled program; nothing is allocated."""
    shapes = jax.eval_shape(lambda: inputs(rows, args))
    return jax.jit(program).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def timed_rows(program: Callable[..., Any], args: argparse.Namespace) -> int:
    """The most rows, by halves, for which the naive way takes at most half of the memory that is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = args.rows
    while rows > 1 and planned_bytes(program, rows, args) > free / 2:
        rows //= 2
    return rows


def measure(case: str, args: argparse.Namespace) -> dict[str, object]:
    """Memory at full size, time of both ways in turns."""
    programs = {name: CASES[case](way) for name, way in WAYS.items()}
    whole = 4 * args.rows * args.tokens * args.vocab
    line: dict[str, object] = {"case": case, "array_mib": round(whole / 2**20, 1)}
    for name, program in programs.items():
        used = planned_bytes(program, args.rows, args)
        line |= {
            f"{name}_temp_mib": round(used / 2**20, 1),
            f"{name}_share": round(used / whole, 4),
        }
    rows = timed_rows(programs["naive"], args)
    arrays, compiled = (
        inputs(rows, args),
        {name: jax.jit(program) for name, program in programs.items()},
    )
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(args.turns + 1):  # the first compiles
        for name, program in compiled.items():
            began = time.perf_counter()
            jax.block_until_ready(program(*arrays))
            if turn > 0:
                times[name].append(time.perf_counter() - began)
    line |= {"timed_rows": rows} | {
        f"{name}_s": round(statistics.median(all_), 3) for name, all_ in times.items()
    }
    ratios = [slow / fast for slow, fast in zip(times["naive"], times["chunked"], strict=True)]
    return line | {"naive_over_chunked": round(statistics.median(ratios), 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {
        "rows": 64,
        "tokens": 512,
        "vocab": 50304,
        "hidden": 128,
        "turns": 5,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    for case in CASES:
        print(json.dumps(measure(case, args)), flush=True)


if __name__ == "__main__":
    main()
