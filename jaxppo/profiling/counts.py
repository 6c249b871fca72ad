"""What a program computes and moves on one device, counted from its trace with loops multiplied out.

Counted are the operations of matrix products, 2 for each multiplication, and the bytes that have to pass between
memory and processor: operands and results of products, of what gathers, sorts and communicates, and of chains of
element-wise operations as if each chain were one kernel. A compiler moves more; so the bytes are a lower bound. XLA's
own `cost_analysis` sees the body of a loop once, and says nothing on a GPU.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.interpreters import partial_eval

_WHOLE = {
    *("psum", "psum_invariant", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all", "ppermute"),
    *("sort", "top_k", "approx_top_k", "argsort", "cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp"),
    *("conv_general_dilated", "pallas_call", "triangular_solve", "cholesky"),
}
"""Operations that read all of their operands and write all of their results."""

_READS = frozenset(("gather", "dynamic_slice", "slice"))
"""They read as much as they return."""
_WRITES = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2, "scatter_add": 2, "scatter-mul": 2}
"""They write into an operand, in place: which operand holds what is written."""

_VIEWS = frozenset(
    ("transpose", "reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "sharding_constraint", "pvary")
)
"""They return their operands, in another order or shape: a kernel that reads them reads those."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters that hold what a call calls."""


class Count(NamedTuple):
    """What one device does, once through."""

    flops: float = 0.0
    bytes: float = 0.0

    def times(self, factor: float) -> "Count":
        """Return the counts of as many runs, or of a share."""
        return Count(self.flops * factor, self.bytes * factor)

    def plus(self, other: "Count") -> "Count":
        """Return the counts of one after the other."""
        return Count(self.flops + other.flops, self.bytes + other.bytes)


def of_program(traced: jex.ClosedJaxpr, devices: int = 1, trips: int = 1) -> Count:
    """Count what one device does in a program.

    What is outside of a `shard_map`, or split by the compiler inside of one, is taken to be split evenly.

    Args:
        traced: a program, for instance `jax.jit(f).trace(*shapes).jaxpr`.
        devices: that the program runs on.
        trips: rounds of loops that say when they are done and not how often they go round; decoding is one.
    """
    used, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return _Counter(trips).region(used, 1.0 / devices)


class _Op(NamedTuple):
    """An operation, or a loop as one, on arrays that are known by number."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    counted: Count | None  # None: element-wise, what it moves depends on its neighbours


class _Region:
    """The body of a loop, or of the whole program, calls inlined."""

    def __init__(self) -> None:
        self.ops: list[_Op] = []
        self.sizes: list[float] = []  # bytes of each array

    def new(self, variable: Any, share: float) -> int:
        self.sizes.append(_bytes(variable) * share)
        return len(self.sizes) - 1

    def count(self, results: Iterable[int]) -> Count:
        """Add up the operations; element-wise ones read what others made, and write what others read."""
        chained = {number for op in self.ops if op.counted is None for number in op.writes}
        read = {number for op in self.ops if op.counted is None for number in op.reads} - chained
        needed = {*results} | {number for op in self.ops if op.counted is not None for number in op.reads}
        total = Count(bytes=sum(self.sizes[number] for number in read | (needed & chained)))
        for op in self.ops:
            total = total.plus(op.counted or Count())
        return total


class _Counter:
    """Walks through a trace."""

    def __init__(self, trips: int):
        self._trips = trips
        self._sizes: dict[str, int] = {}  # of the axes of the mesh

    def region(self, jaxpr: Any, share: float, manual: frozenset[str] = frozenset()) -> Count:
        """Count one round of a body of which this device has a share."""
        region = _Region()
        known = {variable: region.new(variable, share) for variable in (*jaxpr.constvars, *jaxpr.invars)}
        self._inline(jaxpr, known, region, share, manual)
        return region.count(known[variable] for variable in jaxpr.outvars if variable in known)

    def _inline(self, jaxpr: Any, known: dict[Any, int], region: _Region, share: float, manual: frozenset[str]) -> None:
        """Add the operations of a body to a region; `known` numbers its variables."""
        for eqn in jaxpr.eqns:
            inner = next((eqn.params[name] for name in _BODIES if name in eqn.params), None)
            name = eqn.primitive.name
            if inner is not None and name not in ("scan", "pallas_call"):
                self._call(eqn, getattr(inner, "jaxpr", inner), known, region, share, manual)
                continue
            if name in _VIEWS and not any(isinstance(v, jex.Literal) for v in eqn.invars):
                known |= {new: known[old] for old, new in zip(eqn.invars, eqn.outvars, strict=True)}
                continue
            reads = tuple(known[v] for v in eqn.invars if not isinstance(v, jex.Literal))
            for variable in eqn.outvars:
                known[variable] = region.new(variable, share)
            writes = tuple(known[variable] for variable in eqn.outvars)
            region.ops.append(_Op(reads, writes, self._count(eqn, share, manual)))

    def _call(
        self, eqn: Any, body: Any, known: dict[Any, int], region: _Region, share: float, manual: frozenset[str]
    ) -> None:
        """Inline a call: its arguments and results keep their numbers."""
        inside: dict[Any, int] = {}
        if eqn.primitive.name == "shard_map":
            self._sizes |= dict(eqn.params["mesh"].shape)
            manual = manual | frozenset(eqn.params["newly_manual_axes"])
            share = 1.0 / math.prod(size for axis, size in self._sizes.items() if axis not in manual)
        for inner, outer in zip(body.invars, eqn.invars, strict=True):
            if isinstance(outer, jex.Literal) or eqn.primitive.name == "shard_map":  # there with other shapes
                inside[inner] = region.new(inner, share)
            else:
                inside[inner] = known[outer]
        inside |= {constant: region.new(constant, share) for constant in body.constvars}
        self._inline(body, inside, region, share, manual)
        for inner, outer in zip(body.outvars, eqn.outvars, strict=True):
            known[outer] = region.new(outer, share) if isinstance(inner, jex.Literal) else inside[inner]

    def _count(self, eqn: Any, share: float, manual: frozenset[str]) -> Count | None:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return self.region(params["jaxpr"].jaxpr, share, manual).times(params["length"])
        if name == "while":
            body = self.region(params["body_jaxpr"].jaxpr, share, manual)
            return body.plus(self.region(params["cond_jaxpr"].jaxpr, share, manual)).times(self._trips)
        if name == "cond":
            return max(self.region(branch.jaxpr, share, manual) for branch in params["branches"])
        if name == "dot_general":
            return Count(_product(eqn), _moved(eqn)).times(share)
        if name == "pallas_call":
            inside = self.region(params["jaxpr"], share, manual).flops
            return Count(inside * math.prod(params["grid_mapping"].grid), _moved(eqn) * share)
        if name in _WHOLE:
            return Count(bytes=_moved(eqn) * share)
        if name in _READS:
            return Count(bytes=2 * _total(eqn.outvars) * share)
        if name in _WRITES:
            return Count(bytes=2 * _bytes(eqn.invars[_WRITES[name]]) * share)
        return None


def _product(eqn: Any) -> float:
    """Count a matrix product: 2 operations per number of the result and number that is summed over."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracted)


def _moved(eqn: Any) -> float:
    return _total(eqn.invars) + _total(eqn.outvars)


def _total(variables: Sequence[Any]) -> float:
    return sum(map(_bytes, variables))


def _bytes(variable: Any) -> float:
    """Bytes of an array; 0 for what is none."""
    shape, dtype = getattr(variable.aval, "shape", ()), getattr(variable.aval, "dtype", None)
    return float(math.prod(shape)) * getattr(dtype, "itemsize", 0)
