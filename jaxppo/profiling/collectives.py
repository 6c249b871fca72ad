"""What travels between devices in a compiled program, read from its text: ours, and what the compiler has added."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

Sent = Mapping[tuple[str, tuple[str, ...]], float]
"""(kind of collective, axes of the devices) -> bytes of what is gathered, summed up or handed on."""

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({_KINDS})(-start)?\((.*)$")
_CALLED = re.compile(r"(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"(?:branch_computations=\{|true_computation=|false_computation=)([^}\n]*?)(?:\}|,|$)"
)
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"n":\s*"(\d+)"')
_BOUND = re.compile(r"ROOT .* compare\(.*, ?%([\w.\-]+)\), direction=LT")
_CONSTANT = re.compile(r"%([\w.\-]+) = [su]\d+\[\]\S* constant\((\d+)\)")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


class _Computation(NamedTuple):
    """A function of the program's text."""

    sent: dict[tuple[str, tuple[str, ...]], float]
    calls: list[tuple[str, float | str]]  # name, and how often, or the condition of the loop
    constants: dict[str, int]
    bound: list[str]  # of a condition that counts up to a number: its name


def sent(text: str, sizes: Mapping[str, int], trips: int) -> Sent:
    """Add up what every collective of a program carries.

    Args:
        text: of the optimised program.
        sizes: of the axes of the mesh, in its order.
        trips: rounds of the loops whose number the compiler does not know.
    """
    computations, entry = _read(text, sizes)
    total: dict[tuple[str, tuple[str, ...]], float] = {}

    def rounds(condition_name: str) -> float:
        """JAX's loops of known length count from 0 up to a constant."""
        condition = computations[condition_name]
        for name in condition.bound:
            if name in condition.constants:
                return float(condition.constants[name])
        return float(trips)

    def add(name: str, repeats: float) -> None:
        computation = computations.get(name)
        if computation is None:
            return
        for collective, size in computation.sent.items():
            total[collective] = total.get(collective, 0.0) + size * repeats
        for callee, calls in computation.calls:
            factor = rounds(calls) if isinstance(calls, str) else calls
            add(callee, repeats * factor)

    add(entry, 1.0)
    return total


def _read(text: str, sizes: Mapping[str, int]) -> tuple[dict[str, _Computation], str]:
    """Return the computations by name, and the name of the one that is entered first."""
    computations: dict[str, _Computation] = {}
    computation = _Computation({}, [], {}, [])  # takes the lines before the first head
    entry = ""
    chains: set[tuple[str, ...]] = set()
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and (head := _COMPUTATION.match(line)):
            computation = _Computation({}, [], {}, [])
            computations[head[1]] = computation
            if line.startswith("ENTRY"):
                entry = head[1]
            continue
        computation.constants.update((name, int(value)) for name, value in _CONSTANT.findall(line))
        computation.bound.extend(_BOUND.findall(line))
        match = _COLLECTIVE.search(line)
        if match is None:
            computation.calls.extend(_calls(line))
            continue
        # A TPU's compiler writes a collective that runs beside other work several times, as steps
        # of one chain: only the first step counts.
        chain = re.search(r'chain_id="(\d+)".*op_name="([^"]*)"', line)
        if chain is not None and chain.groups() in chains:
            continue
        axes = _axes(line, sizes)
        if axes:
            collective = match[2], axes
            computation.sent[collective] = computation.sent.get(collective, 0.0) + _payload(
                match, sizes, axes
            )
        if chain is not None:
            chains.add(chain.groups())
    return computations, entry


def _calls(line: str) -> Iterable[tuple[str, float | str]]:
    """Yield what an instruction calls, and how often; a loop's body with its condition, where that must say."""
    callees = _CALLED.findall(line)
    for role, name in callees:
        if role == "body":
            trip_count = _TRIPS.search(line)
            yield name, dict(callees)["condition"] if trip_count is None else float(trip_count[1])
        elif role != "condition":
            yield name, 1.0
    # Which branch is taken is not in the text: all of them count.
    for branches in _BRANCHES.findall(line):
        for name in branches.split(","):
            yield name.strip(" %"), 1.0


def _payload(match: re.Match[str], sizes: Mapping[str, int], axes: Iterable[str]) -> float:
    """Return the bytes of the whole that is gathered, summed up, scattered or handed on.

    One that is started here and done elsewhere names its operands before its results.
    """
    result, kind, start, _ = match.groups()
    shapes = []
    for dtype, dims in _SHAPE.findall(result):
        numbers = math.prod(int(size) for size in dims.split(",") if size)
        shapes.append(numbers * _width(dtype))
    devices = math.prod(sizes[axis] for axis in axes)
    if kind == "all-reduce" or (start is None and kind != "reduce-scatter"):
        return sum(shapes)
    if kind in ("all-gather", "reduce-scatter"):
        return sum(shapes) * (devices if start is None else devices / (devices + 1))
    return max(shapes)


def _width(dtype: str) -> float:
    """Return the bytes of one number of a dtype as XLA writes it: `f32`, `bf16`, `pred`."""
    bits = re.search(r"\d+", dtype)
    return 1.0 if bits is None else int(bits[0]) / 8


def _axes(line: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes along which the devices of a group differ."""
    group = _first_group(line, math.prod(sizes.values()))
    if len(group) < 2:
        return ()
    # All groups of a collective are alike, so the coordinates of the first one's devices in the
    # mesh are enough.
    coordinates = np.unravel_index(group, tuple(sizes.values()))
    return tuple(
        axis for axis, indices in zip(sizes, coordinates, strict=True) if np.ptp(indices) > 0
    )


def _first_group(line: str, devices: int) -> list[int]:
    """Return the devices of the first group, which XLA writes in one of three ways; all devices where it names none."""
    if match := _IOTA.search(line):
        # [groups,members]<=[shape]T(order): the devices counted up in that shape, transposed, then
        # cut into groups.
        numbers = np.arange(devices).reshape([int(size) for size in match[3].split(",")])
        if match[4]:
            numbers = numbers.transpose([int(axis) for axis in match[4].split(",")])
        return numbers.reshape(int(match[1]), int(match[2]))[0].tolist()
    if match := _LISTED.search(line):
        return [int(device) for device in match[1].split(",")]
    if match := _PAIRS.search(line):
        return [int(match[1]), int(match[2])]
    return list(range(devices))
