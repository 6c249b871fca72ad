"""What the optimised programs of an update for a target hold and multiply, read from the compiler's text.

Run as a script, as the compiler for TPUs takes over the signals of a process:

    python tests/rl/wide_arrays.py tpu-v5e-4

The last line is a JSON object: program -> `Found`.
"""

import json
import math
import re
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import aot, targets
from jaxppo.rl import programs
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch

ROWS, PROMPT, RESPONSE = 16, 232, 24  # rows of one device; together 256 tokens, whole tiles
VOCABULARY, HEADS = 20_000, 2
MODEL = GPTNeoXConfig(
    vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=4, num_attention_heads=HEADS, intermediate_size=512
)
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
    tokens = PROMPT + RESPONSE
    logits, scores = set(), set()
    for kind, dims in ARRAY.findall(text):
        shape = [int(n) for n in dims.split(",") if n]
        if VOCABULARY in shape and math.prod(shape) >= ROWS * RESPONSE * VOCABULARY:
            logits.add(f"{kind}[{dims}]")
        if shape.count(tokens) >= 2 and math.prod(shape) >= ROWS * HEADS * tokens * tokens:
            scores.add(f"{kind}[{dims}]")
    known = {name: (kind, [int(n) for n in dims.split(",") if n]) for name, kind, dims in NAMED.findall(text)}
    wide = set()
    for operands in PRODUCT.findall(text):
        found = [known.get(operand.split()[-1].lstrip("%"), ("", [])) for operand in operands.split(", ")][:2]
        matrices = all(kind == "f32" and math.prod(shape) >= MODEL.hidden_size**2 for kind, shape in found)
        if matrices:
            wide.add(" x ".join(f"{kind}{shape}" for kind, shape in found))
    return Found(sorted(logits), sorted(scores), sorted(wide))


def main(name: str) -> None:
    platform.compile_only()
    target = targets.find(name)
    with aot.aiming_at(target):
        parallel = DataParallel(devices=aot.devices_of(target))
        rows = ROWS * parallel.num_devices
        settings = {"batch_size": rows, "num_mini_batches": 1, "response_length": RESPONSE, "total_episodes": 10 * rows}
        ppo = PPO(replace(TrainConfig(), dtype="bfloat16", **settings), MODEL, 0, 1, parallel)
        policy = jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0)))
        state = jax.eval_shape(ppo.init_state, policy)
        reference = jax.eval_shape(ppo.reference, state, policy)
        prompts = [jax.ShapeDtypeStruct((rows, PROMPT), kind) for kind in (jnp.int32, bool)]
        stages = programs.of_update(ppo, state, reference, PromptBatch(*prompts))  # type: ignore[arg-type]
        found = {
            f"{stage} {number}": look(program.function.trace(*program.arguments).lower().compile().as_text())._asdict()
            for stage, programs in stages.items()
            for number, program in enumerate(programs)
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
