"""Milliseconds of the forms of attention, forward and gradient, in bfloat16: python benchmarks/attention.py.

    python benchmarks/attention.py --rows 16 --heads 16 --tokens 1024 --head-size 128

The package's own forms and `jax.nn.dot_product_attention` by XLA and by cuDNN, which takes no padding mask here: one
with rows of their own would be [T, T]. Rows are padded on the left, from none to half of them. One JSON line per form,
with what JAX said in place of times where a form does not run on this device.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.nn import attention, kernels

TURNS, CALLS = 5, 4
"""Median of so many turns, each of so many calls."""


def forms(mask: jax.Array, scale: float) -> dict[str, Callable[..., jax.Array]]:
    """By name: [B, H, T, K] queries, keys and values -> [B, H, T, K]."""
    tokens = mask.shape[1]
    queries = jnp.arange(tokens)[None]
    bias = attention.causal_bias(queries, tokens, mask, None)

    def of_jax(implementation: str, mask: jax.Array | None) -> Callable[..., jax.Array]:
        def form(*arrays: jax.Array) -> jax.Array:
            q, k, v = (x.transpose(0, 2, 1, 3) for x in arrays)
            by: Any = implementation
            attended = jax.nn.dot_product_attention(
                q, k, v, mask=mask, scale=scale, is_causal=True, implementation=by
            )
            return attended.transpose(0, 2, 1, 3)

        return form

    return {
        "plain": lambda q, k, v: attention.attend(q, k, v, bias, scale),
        "blocks": lambda q, k, v: attention.attend_in_blocks(q, k, v, queries, mask, scale),
        "triton": lambda q, k, v: kernels.triton(q, k, v, mask, scale=scale),
        "xla": of_jax("xla", mask[:, None, None]),
        "cudnn": of_jax("cudnn", None),
    }


def gradient(form: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Of the sum of all results, with respect to queries, keys and values."""
    return jax.grad(lambda *arrays: jnp.sum(form(*arrays).astype(jnp.float32)), (0, 1, 2))


def milliseconds(program: Callable[..., Any], arrays: tuple[jax.Array, ...]) -> float:
    """Of one call of a program that is compiled first."""
    compiled = jax.jit(program)
    jax.block_until_ready(compiled(*arrays))
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        jax.block_until_ready([compiled(*arrays) for _ in range(CALLS)])
        seconds.append((time.perf_counter() - start) / CALLS)
    return round(1000 * statistics.median(seconds), 3)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, size in (("rows", 64), ("heads", 12), ("tokens", 565), ("head-size", 64)):
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args()
    shape = (args.rows, args.heads, args.tokens, args.head_size)
    q, k, v = (
        jax.random.normal(key, shape, jnp.bfloat16)
        for key in jax.random.split(jax.random.key(0), 3)
    )
    padding = jnp.linspace(0, args.tokens // 2, args.rows).astype(int)
    for name, form in forms(
        jnp.arange(args.tokens) >= padding[:, None], args.head_size**-0.5
    ).items():
        line: dict[str, Any] = {"form": name}
        for label, program in (("forward_ms", form), ("gradient_ms", gradient(form))):
            try:
                line[label] = milliseconds(program, (q, k, v))
            except (ValueError, RuntimeError, NotImplementedError) as error:
                line[label] = str(error).splitlines()[0]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
