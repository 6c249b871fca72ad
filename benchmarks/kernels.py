"""Kernels that a GPU starts, and bytes that they move, in the programs of an update: by its compiler, nothing is run.

    pip install 'jaxppo[aot-gpu]'
    python benchmarks/kernels.py --workload pythia-160m --target gpu-h100x1

One JSON line a program: `generate` for a token, all rows still going; `update` for a micro-batch and its share of the
optimizer's step. A kernel is an instruction of the compiled program that is more than a name for what is there. Bytes
are what its operands and results take, of an operand that is sliced within the kernel the slice, and of a result that
is written into a larger array the part. What caches save is not known to this count, nor what a kernel reads twice.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from workloads import WORKLOADS, Workload, model_config, train_config

from jaxppo import models
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import aot, targets
from jaxppo.rl.describe import plan_of
from jaxppo.rl.learner import Learner
from jaxppo.rl.start import Start

NO_KERNEL = {
    "parameter",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "constant",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
}
"""Instructions for which a GPU starts nothing."""

SLICES = ("dynamic-slice", "slice", "gather")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_TRIPS = re.compile(r"known_trip_count.{0,8}n\D*(\d+)")


class Instruction(NamedTuple):
    """One instruction of a compiled program, as XLA prints it."""

    name: str
    shape: str
    kind: str
    operands: list[str]
    text: str  # what stands after the opening bracket
    is_root: bool

    def called(self, attribute: str) -> str:
        """Return the name of the computation that an attribute names."""
        match = re.search(attribute + r"=%?([\w.\-]+)", self.text)
        assert match is not None, self
        return match[1]


class Kernel(NamedTuple):
    """A kernel, and how often it runs."""

    loop: str  # the innermost loop that has it; "" outside of all
    times: int
    num_bytes: int


class Module:
    """A compiled program.

    Args:
        text: from `compiled.as_text()`.
    """

    def __init__(self, text: str):
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry = ""
        instructions: dict[str, Instruction] = {}
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            if start is not None:
                instructions = {}
                self._computations[start[2]] = instructions
                if start[1]:
                    self._entry = start[2]
                continue
            match = _INSTRUCTION.match(line)
            if match is not None:
                operands = re.findall(r"%([\w.\-]+)", _within_brackets(match[5]))
                instruction = Instruction(
                    match[2], match[3], match[4], operands, match[5], bool(match[1])
                )
                instructions[instruction.name] = instruction

    def kernels(self) -> list[Kernel]:
        """List the kernels; of a loop whose trips are not known, such as that over tokens, once."""
        return list(self._kernels(self._entry, "", 1))

    def _kernels(self, computation: str, loop: str, times: int) -> Iterator[Kernel]:
        for instruction in self._computations[computation].values():
            kind = instruction.kind
            if kind == "while":
                trips = _TRIPS.search(instruction.text)
                rounds = 1 if trips is None else int(trips[1])
                body = instruction.called("body")
                yield from self._kernels(body, instruction.name, times * rounds)
            elif kind == "conditional":
                branches = re.search(r"branch_computations=\{(.*?)\}", instruction.text)
                assert branches is not None, instruction
                for branch in re.findall(r"[\w.\-]+", branches[1]):
                    yield from self._kernels(branch, loop, times)
            elif kind == "call":
                yield from self._kernels(instruction.called("to_apply"), loop, times)
            elif kind == "async-start":
                yield from self._kernels(instruction.called("calls"), loop, times)
            elif kind not in NO_KERNEL and not kind.endswith("-done"):
                yield Kernel(loop, times, self._bytes(computation, instruction))

    def _bytes(self, computation: str, instruction: Instruction) -> int:
        known = self._computations[computation]
        shapes = [known[name].shape for name in instruction.operands if name in known]
        if instruction.kind in ("fusion", "fusion-start"):
            return self._fusion_bytes(instruction, shapes)
        if instruction.kind in SLICES:
            return 2 * array_bytes(instruction.shape)
        if instruction.kind == "dynamic-update-slice":
            return 2 * array_bytes(shapes[1])
        return array_bytes(instruction.shape) + sum(map(array_bytes, shapes))

    def _fusion_bytes(self, fusion: Instruction, shapes: list[str]) -> int:
        """Count what a fused kernel reads and writes: of what it slices, or writes a part into, the part."""
        inner = self._computations[fusion.called("calls")]
        (root,) = (each for each in inner.values() if each.is_root)
        results = [inner[name] for name in root.operands] if root.kind == "tuple" else [root]
        total = 0
        for result in results:
            written = _behind_copies(result, inner)
            if written.kind == "dynamic-update-slice":
                total += array_bytes(inner[written.operands[1]].shape)
            else:
                total += array_bytes(result.shape)
        for each in inner.values():
            if each.kind == "parameter":
                size = array_bytes(shapes[int(_within_brackets(each.text))])
                total += min(size, _read(each.name, size, inner))
        return total


def _within_brackets(text: str) -> str:
    """Return what stands before the bracket that closes the one before the text."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:i]
    return text


def _behind_copies(instruction: Instruction, inner: dict[str, Instruction]) -> Instruction:
    while instruction.kind in ("bitcast", "convert", "copy"):
        instruction = inner[instruction.operands[0]]
    return instruction


def _read(name: str, size: int, inner: dict[str, Instruction]) -> int:
    """Return how many of an operand's bytes a fused kernel reads."""
    total = 0
    for user in inner.values():
        if name not in user.operands:
            continue
        is_first = user.operands[0] == name
        if user.kind in SLICES and is_first:
            total += array_bytes(user.shape)
        elif user.kind in ("bitcast", "reshape"):
            total += _read(user.name, size, inner)
        elif not (user.kind == "dynamic-update-slice" and is_first):
            return size
    return total


def array_bytes(shape: str) -> int:
    """Return the bytes of an array, or of a tuple of them, as XLA writes shapes."""
    total = 0
    for name, bits, sizes in _ARRAY.findall(shape):
        item = 1 if name == "pred" else max(1, int(bits) // 8)
        total += item * math.prod(int(size) for size in sizes.split(",") if size)
    return total


def programs_of(work: Workload, devices: list[Any]) -> tuple[Learner, aot.Plan]:
    """Plan an update of a workload for these devices, which may be absent."""
    config = train_config(work, Path("nowhere"))
    model = model_config(work)

    def start() -> Start:
        policy = models.init_params(model, jax.random.key(0), "lm")
        return Start(policy, models.init_params(model, jax.random.key(1), "score"), None)

    parallel = DataParallel(devices=devices)
    learner = Learner(config, model, eos_id=0, pad_id=1, parallel=parallel)
    return learner, plan_of(learner, jax.eval_shape(start), work.prompt)


def measure(work: Workload, target: targets.Target) -> Iterator[dict[str, Any]]:
    """Compile `generate` and `update`, and count."""
    with aot.aiming_at(target):
        _, plan = programs_of(work, aot.devices_of(target))
        for name in ("generate", "update"):
            (program,) = plan.stages[name]
            compiled = program.function.lower(*program.arguments).compile()
            kernels = Module(compiled.as_text()).kernels()
            if name == "generate":
                # Of the loops over tokens, one for each number of rows that go on, that of all rows has the most bytes.
                loops = {kernel.loop for kernel in kernels if kernel.times == 1 and kernel.loop}
                by_loop = [[each for each in kernels if each.loop == loop] for loop in loops]
                kernels = max(by_loop, key=lambda each: sum(kernel.num_bytes for kernel in each))
                parts = 1
            else:
                # Arrays of rows are [mini-batches of all epochs, micro-batches of each, ...].
                parts = math.prod(jax.tree.leaves(program.rows)[0].shape[:2])
            yield {
                "program": name,
                "kernels": round(sum(kernel.times for kernel in kernels) / parts),
                "mib": round(
                    sum(kernel.times * kernel.num_bytes for kernel in kernels) / parts / 2**20, 1
                ),
                "temp_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
            }


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="pythia-160m")
    parser.add_argument("--target", default="gpu-h100x1")
    args = parser.parse_args()
    platform.compile_only()
    jax.config.update("jax_default_matmul_precision", "highest")
    about = {"workload": args.workload, "target": args.target, "jax": jax.__version__}
    for counts in measure(WORKLOADS[args.workload], targets.find(args.target)):
        print(json.dumps(about | counts), flush=True)


if __name__ == "__main__":
    main()
