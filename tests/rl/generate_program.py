"""The sampling program of a small model, compiled for a platform that need not be there, and what it holds.

Run as a script for a TPU, as its compiler's library takes over the signals of a process:

    TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1 python tests/rl/generate_program.py

The last line is a JSON list of two `Held`, of the program without and with dropping rows.
"""

import dataclasses
import json
import math
import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from jaxppo import models
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.platform import Platform, compiling_for
from jaxppo.profiling import sizes
from jaxppo.rl import rollout
from jaxppo.types import PromptBatch

MODEL = GPTNeoXConfig(
    vocab_size=211,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
)
ROWS, PROMPT, LENGTH = 32, 239, 16
MANY_ROWS = 1024  # more than a TPU takes into its fast memory


class Held(NamedTuple):
    """What a program holds.

    Attributes:
        temporaries: bytes.
        cache: bytes of one cache.
        weights: bytes in the dtype of the computation.
        caches: for each loop that carries all rows' cache, how many arrays of its shape.
        copied: instructions in the bodies of such loops that make another array of that shape.
        widest: most numbers of an array one of whose axes is the vocabulary.
    """

    temporaries: int
    cache: int
    weights: int
    caches: list[int]
    copied: list[str]
    widest: int


def compiled(device: Any, name: str, dtype: str | None = None, rows: int = ROWS, **options: Any) -> Any:
    """Compile `rollout.generate` for a device from shapes."""
    model = dataclasses.replace(MODEL, compute_dtype=dtype)
    place = SingleDeviceSharding(device)
    shape = lambda *size, dtype=jnp.float32: jax.ShapeDtypeStruct(size, dtype, sharding=place)  # noqa: E731
    params = jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0)))
    params = jax.tree.map(lambda x: shape(*x.shape), params)
    prompts = PromptBatch(shape(rows, PROMPT, dtype=jnp.int32), shape(rows, PROMPT, dtype=jnp.bool))
    program = partial(rollout.generate, model=model, stop_ids=(3,), pad_id=1, temperature=0.7, **options)
    with compiling_for(Platform(name, 2**34)):
        return jax.jit(program).lower(params, prompts, shape(rows, LENGTH)).compile()


def held(program: Any, dtype: str | None = None, rows: int = ROWS) -> Held:
    """Read a compiled program."""
    model = dataclasses.replace(MODEL, compute_dtype=dtype)
    text = program.as_text()
    shape = f"[{rows},{MODEL.num_key_value_heads},{PROMPT + LENGTH},{MODEL.head_dim}]"
    bodies, roots = {}, {}
    name = ""
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = head[1]
            bodies[name] = []
        elif name and (found := re.match(r"\s*(ROOT )?%?[\w.\-]+ = (.*)", line)):
            bodies[name].append(found[2])
            if found[1]:
                roots[name] = found[2]
    caches, copied = [], []
    for line in text.splitlines():
        if not (loop := re.search(r"= \((.*?)\) while\(.*body=%?([\w.\-]+)", line)):
            continue
        count = loop[1].count(shape)
        if count == 0:
            continue
        caches.append(count)
        copied += [made for made in bodies[loop[2]] if shape in made.split("(")[0] and not _in_place(made, roots)]
    shapes = [[int(size) for size in found.split(",")] for found in re.findall(r"\w+\[([\d,]+)\]", text)]
    params = jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0)))
    return Held(
        temporaries=program.memory_analysis().temp_size_in_bytes,
        cache=sizes.kv_cache_bytes(model, rows, PROMPT + LENGTH),
        weights=sizes.compute_bytes(model, params),
        caches=caches,
        copied=copied,
        widest=max(math.prod(shape) for shape in shapes if MODEL.vocab_size in shape),
    )


def _in_place(made: str, roots: dict[str, str]) -> bool:
    """Whether an instruction passes an array on, or writes a part of it over what was there."""
    operation = re.match(r"\S+ ([\w\-]+)\(", made)
    if operation is None:
        return False
    if operation[1] in ("fusion", "call"):
        called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", made)
        return called is not None and _in_place(roots[called[1]], roots)
    return operation[1] in ("get-tuple-element", "parameter", "bitcast", "dynamic-update-slice")


def main() -> None:
    """Compile for a TPU, without and with dropping rows."""
    rollout.FEWEST_ROWS = MANY_ROWS // 4  # three loops of one form, not eight
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    how = {"dtype": "bfloat16", "rows": MANY_ROWS}
    programs = (compiled(topology.devices[0], "tpu", drop_ended=drop, **how) for drop in (False, True))
    results = [held(program, **how)._asdict() for program in programs]
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
