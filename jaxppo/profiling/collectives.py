"""What travels between devices in a compiled program, read from its text: ours, and what the compiler has added."""

import json
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
_BRANCHES = re.compile(r"(?:branch_computations=\{|true_computation=|false_computation=)([^}\n]*?)(?:\}|,|$)")
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

    def rounds(condition: str) -> float:
        """JAX's loops of known length count from 0 up to a constant."""
        of_loop = computations[condition]
        return float(next((of_loop.constants[name] for name in of_loop.bound if name in of_loop.constants), trips))

    def add(name: str, times: float) -> None:
        computation = computations.get(name)
        if computation is None:
            return
        for what, size in computation.sent.items():
            total[what] = total.get(what, 0.0) + size * times
        for called, often in computation.calls:
            add(called, times * (rounds(often) if isinstance(often, str) else often))

    add(entry, 1.0)
    return total


def _read(text: str, sizes: Mapping[str, int]) -> tuple[dict[str, _Computation], str]:
    """Return the computations by name, and the name of the one that is entered first."""
    computations: dict[str, _Computation] = {}
    inside, entry, seen = _Computation({}, [], {}, []), "", set()
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and (head := _COMPUTATION.match(line)):
            inside = computations[head[1]] = _Computation({}, [], {}, [])
            entry = head[1] if line.startswith("ENTRY") else entry
            continue
        inside.constants.update((name, int(value)) for name, value in _CONSTANT.findall(line))
        inside.bound.extend(_BOUND.findall(line))
        found = _COLLECTIVE.search(line)
        if found is None:
            inside.calls.extend(_calls(line))
            continue
        # A TPU's compiler writes one that goes on beside other work several times, as steps of one chain.
        chain = re.search(r'chain_id="(\d+)".*op_name="([^"]*)"', line)
        axes = _axes(line, sizes)
        if axes and (chain is None or chain.groups() not in seen):
            inside.sent[found[2], axes] = inside.sent.get((found[2], axes), 0.0) + _payload(found, sizes, axes)
        if chain is not None:
            seen.add(chain.groups())
    return computations, entry


def _calls(line: str) -> Iterable[tuple[str, float | str]]:
    """Yield what an instruction calls, and how often; a loop's body with its condition, where that must say."""
    names = [
        *_CALLED.findall(line),
        *(("branch", n.strip(" %")) for b in _BRANCHES.findall(line) for n in b.split(",")),
    ]
    for word, name in names:
        if word == "body":
            known = _TRIPS.search(line)
            yield name, float(known[1]) if known else dict(_CALLED.findall(line))["condition"]
        elif word != "condition":
            yield name, 1.0


def _payload(found: re.Match[str], sizes: Mapping[str, int], axes: Iterable[str]) -> float:
    """Return the bytes of the whole that is gathered, summed up, scattered or handed on.

    One that is started here and done elsewhere names its operands before its results.
    """
    result, kind, start, _ = found.groups()
    shapes = [math.prod(int(n) for n in dims.split(",") if n) * _width(dtype) for dtype, dims in _SHAPE.findall(result)]
    devices = math.prod(sizes[axis] for axis in axes)
    if kind == "all-reduce" or (start is None and kind != "reduce-scatter"):
        return sum(shapes)
    if kind in ("all-gather", "reduce-scatter"):
        return sum(shapes) * (devices if start is None else devices / (devices + 1))
    return max(shapes)


def _width(dtype: str) -> float:
    bits = re.search(r"\d+", dtype)
    return 1.0 if bits is None else int(bits[0]) / 8


def _axes(line: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes along which the devices of a group differ."""
    group = _first_group(line, math.prod(sizes.values()))
    if len(group) < 2:
        return ()
    places = np.array(np.unravel_index(group, tuple(sizes.values())))
    return tuple(axis for axis, along in zip(sizes, places, strict=True) if len(set(along.tolist())) > 1)


def _first_group(line: str, devices: int) -> list[int]:
    if found := _IOTA.search(line):
        numbers = np.arange(devices).reshape([int(n) for n in found[3].split(",")])
        if found[4]:
            numbers = numbers.transpose([int(n) for n in found[4].split(",")])
        return numbers.reshape(int(found[1]), int(found[2]))[0].tolist()
    if found := _LISTED.search(line):
        return json.loads(f"[{found[1]}]")
    if found := _PAIRS.search(line):
        return [int(found[1]), int(found[2])]
    return list(range(devices))
