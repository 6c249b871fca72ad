"""What the optimised programs of an update hold and multiply, read from the text of the compiler for a platform.

Run as a script for accelerators, as the compiler for TPUs takes over the signals of a process:

    python tests/rl/accelerator_programs.py tpu-v5e-4

The last line is a JSON object: stage of an update -> `Found`, and for a TPU "decoding" -> `Held`.
"""

import dataclasses
import json
import math
import re
import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn import Computation
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.platform import Platform, compiling_for
from jaxppo.profiling import aot, sizes, targets
from jaxppo.rl import programs, rollout
from jaxppo.rl.learner import PPO
from jaxppo.types import PromptBatch

SIZES = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
MODEL = GPTNeoXConfig(**SIZES, vocab_size=211, intermediate_size=128)
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
    model = dataclasses.replace(MODEL, computation=Computation(dtype=dtype))
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
    model = dataclasses.replace(MODEL, computation=Computation(dtype=dtype))
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


WIDE = GPTNeoXConfig(**SIZES, vocab_size=10_000, intermediate_size=512)
WIDE_ROWS, WIDE_PROMPT, RESPONSE = 16, 232, 24  # together 256 tokens, whole tiles
ARRAY = re.compile(r"= \(?([a-z0-9]+)\[([\d,]*)\]")
PRODUCT = re.compile(r"= \S+ (?:dot|convolution)\(([^)]*)\)")
NAMED = re.compile(r"%?([\w.\-]+) = \(?([a-z0-9]+)\[([\d,]*)\]")


class Found(NamedTuple):
    """What a test looks at."""

    logits: list[str]  # arrays as large as the logits of all tokens that are predicted
    scores: list[str]  # arrays as large as all attention scores, with two axes of all tokens
    wide_products: list[str]  # products of two float32 matrices, each at least hidden size x hidden size


def look(text: str) -> Found:
    """Read an optimised program."""
    tokens = WIDE_PROMPT + RESPONSE
    logits, scores = set(), set()
    for kind, dims in ARRAY.findall(text):
        shape = [int(n) for n in dims.split(",") if n]
        if WIDE.vocab_size in shape and math.prod(shape) >= WIDE_ROWS * RESPONSE * WIDE.vocab_size:
            logits.add(f"{kind}[{dims}]")
        if shape.count(tokens) >= 2 and math.prod(shape) >= WIDE_ROWS * WIDE.num_attention_heads * tokens * tokens:
            scores.add(f"{kind}[{dims}]")
    arrays = {name: (kind, [int(n) for n in dims.split(",") if n]) for name, kind, dims in NAMED.findall(text)}
    wide = set()
    for operands in PRODUCT.findall(text):
        found = [arrays.get(operand.split()[-1].lstrip("%"), ("", [])) for operand in operands.split(", ")][:2]
        matrices = all(kind == "f32" and math.prod(shape) >= WIDE.hidden_size**2 for kind, shape in found)
        if matrices:
            wide.add(" x ".join(f"{kind}{shape}" for kind, shape in found))
    return Found(sorted(logits), sorted(scores), sorted(wide))


def look_at_stages(device: Any) -> dict[str, Any]:
    """Compile the stages of an update for a device, and look at each."""
    settings = {"batch_size": WIDE_ROWS, "response_length": RESPONSE, "total_episodes": 10 * WIDE_ROWS}
    config = replace(
        TrainConfig(), dtype="bfloat16", algorithm="rloo", num_generations=2, num_mini_batches=1, **settings
    )
    ppo = PPO(config, WIDE, 0, 1, DataParallel(devices=[device]))
    policy = jax.eval_shape(lambda: models.init_params(WIDE, jax.random.key(0)))
    state = jax.eval_shape(ppo.init_state, policy)
    reference = jax.eval_shape(ppo.reference, state, policy)
    prompts = [jax.ShapeDtypeStruct((WIDE_ROWS // 2, WIDE_PROMPT), kind) for kind in (jnp.int32, bool)]
    found = {}
    for stage, of_stage in programs.of_update(ppo, state, reference, PromptBatch(*prompts)).items():
        program = of_stage[0]  # policy and reference go through one
        compiled = program.function.trace(*program.arguments).lower().compile()
        found[stage] = look(compiled.as_text())._asdict()
    return found


def main(name: str) -> None:
    platform.compile_only()
    target = targets.find(name)
    with aot.aiming_at(target):
        device = aot.devices_of(target)[0]
        results = look_at_stages(device)
        if name.startswith("tpu"):
            rollout.MIN_DECODED_ROWS = MANY_ROWS // 2  # two loops, not eight
            how = {"dtype": "bfloat16", "rows": MANY_ROWS}
            results["decoding"] = held(compiled(device, "tpu", drop_ended=True, **how), **how)._asdict()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
