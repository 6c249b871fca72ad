"""What a program computes and moves on one device, counted from its trace with loops multiplied out.

Counted are the operations of matrix products, 2 for each multiplication, and the bytes that have to pass between
memory and processor: operands and results of products, of what gathers, sorts and communicates, and of chains of
element-wise operations as if each chain were one kernel. A compiler moves more; so the bytes are a lower bound. XLA's
own `cost_analysis` sees the body of a loop once, and says nothing on a GPU.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.interpreters import partial_eval

_WHOLE = {
    *(
        "psum",
        "psum_invariant",
        "pmax",
        "pmin",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "ppermute",
    ),
    *(
        "sort",
        "top_k",
        "approx_top_k",
        "argsort",
        "cumsum",
        "cummax",
        "cummin",
        "cumprod",
        "cumlogsumexp",
    ),
    *("conv_general_dilated", "pallas_call", "triangular_solve", "cholesky"),
}
"""Operations that read all of their operands and write all of their results."""

_READS = frozenset(("gather", "dynamic_slice", "slice"))
"""They read as much as they return."""
_WRITES = {
    "dynamic_update_slice": 1,
    "scatter": 2,
    "scatter-add": 2,
    "scatter_add": 2,
    "scatter-mul": 2,
}
"""They write into an operand, in place: which operand holds what is written."""

_VIEWS = frozenset(
    (
        "transpose",
        "reshape",
        "squeeze",
        "expand_dims",
        "copy",
        "optimization_barrier",
        "sharding_constraint",
        "pvary",
    )
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
    # A trace holds operations whose results nobody reads; compilers drop them, so they are not
    # counted.
    live_jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return _Counter(trips).region(live_jaxpr, 1.0 / devices)


class _Op(NamedTuple):
    """An operation, or a loop as one, on numbered arrays."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    work: Count | None  # None: element-wise, what it moves depends on its neighbours


class _Region:
    """The body of a loop, or of the whole program, calls inlined."""

    def __init__(self) -> None:
        self.ops: list[_Op] = []
        self.sizes: list[float] = []  # bytes of each array

    def add_array(self, variable: Any, share: float) -> int:
        """Return the number of a new array."""
        self.sizes.append(_bytes(variable) * share)
        return len(self.sizes) - 1

    def count(self, results: Iterable[int]) -> Count:
        """Add up the operations of the region, of which `results` leave it.

        Element-wise operations come in chains, and a compiler makes one kernel of a chain: what passes between its
        operations stays in registers. So a chain reads only arrays that are not made by an element-wise operation,
        and writes only those of its arrays that another kind of operation reads, or that leave the region. All other
        operations have been counted by themselves.
        """
        chain_operands: set[int] = set()
        chain_results: set[int] = set()
        read_outside = set(results)
        for op in self.ops:
            if op.work is None:
                chain_operands.update(op.operands)
                chain_results.update(op.results)
            else:
                read_outside.update(op.operands)
        moved = (chain_operands - chain_results) | (chain_results & read_outside)
        total = Count(bytes=sum(self.sizes[number] for number in moved))
        for op in self.ops:
            if op.work is not None:
                total = total.plus(op.work)
        return total


class _Counter:
    """Walks through a trace."""

    def __init__(self, trips: int):
        self._trips = trips
        self._axis_sizes: dict[str, int] = {}  # of the mesh

    def region(self, jaxpr: Any, share: float, manual: frozenset[str] = frozenset()) -> Count:
        """Count one round of a body of which this device has a share."""
        region = _Region()
        numbers = {
            variable: region.add_array(variable, share)
            for variable in (*jaxpr.constvars, *jaxpr.invars)
        }
        self._inline(jaxpr, numbers, region, share, manual)
        # A literal may be among the results, and has no number.
        return region.count(numbers[variable] for variable in jaxpr.outvars if variable in numbers)

    def _inline(
        self,
        jaxpr: Any,
        numbers: dict[Any, int],
        region: _Region,
        share: float,
        manual: frozenset[str],
    ) -> None:
        """Add the operations of a body to a region; `numbers` has the arrays of its variables."""
        for eqn in jaxpr.eqns:
            callee = next((eqn.params[name] for name in _BODIES if name in eqn.params), None)
            name = eqn.primitive.name
            # Loops and kernels have a body, too, which runs many times: they are counted as one
            # operation.
            if callee is not None and name not in ("scan", "pallas_call"):
                self._call(eqn, getattr(callee, "jaxpr", callee), numbers, region, share, manual)
                continue
            if name in _VIEWS and not any(
                isinstance(variable, jex.Literal) for variable in eqn.invars
            ):
                for operand, result in zip(eqn.invars, eqn.outvars, strict=True):
                    numbers[result] = numbers[operand]
                continue
            operands = tuple(
                numbers[variable]
                for variable in eqn.invars
                if not isinstance(variable, jex.Literal)
            )
            for variable in eqn.outvars:
                numbers[variable] = region.add_array(variable, share)
            results = tuple(numbers[variable] for variable in eqn.outvars)
            region.ops.append(_Op(operands, results, self._count(eqn, share, manual)))

    def _call(
        self,
        eqn: Any,
        body: Any,
        numbers: dict[Any, int],
        region: _Region,
        share: float,
        manual: frozenset[str],
    ) -> None:
        """Inline a call: its arguments and results keep their numbers."""
        is_shard_map = eqn.primitive.name == "shard_map"
        if is_shard_map:
            # Shapes inside are those of one device already along the axes that the function splits
            # by itself; the compiler splits along the others.
            self._axis_sizes |= dict(eqn.params["mesh"].shape)
            manual = manual | frozenset(eqn.params["newly_manual_axes"])
            share = 1.0 / math.prod(
                size for axis, size in self._axis_sizes.items() if axis not in manual
            )
        body_numbers = {constant: region.add_array(constant, share) for constant in body.constvars}
        for parameter, argument in zip(body.invars, eqn.invars, strict=True):
            if is_shard_map or isinstance(argument, jex.Literal):
                body_numbers[parameter] = region.add_array(parameter, share)
            else:
                body_numbers[parameter] = numbers[argument]
        self._inline(body, body_numbers, region, share, manual)
        for returned, result in zip(body.outvars, eqn.outvars, strict=True):
            if isinstance(returned, jex.Literal):
                numbers[result] = region.add_array(result, share)
            else:
                numbers[result] = body_numbers[returned]

    def _count(self, eqn: Any, share: float, manual: frozenset[str]) -> Count | None:
        name = eqn.primitive.name
        params = eqn.params
        if name == "scan":
            return self.region(params["jaxpr"].jaxpr, share, manual).times(params["length"])
        if name == "while":
            body = self.region(params["body_jaxpr"].jaxpr, share, manual)
            condition = self.region(params["cond_jaxpr"].jaxpr, share, manual)
            return body.plus(condition).times(self._trips)
        if name == "cond":
            # Which branch is taken is not in the trace: the most expensive one counts.
            return max(self.region(branch.jaxpr, share, manual) for branch in params["branches"])
        if name == "dot_general":
            return Count(_product(eqn), _moved(eqn)).times(share)
        if name == "pallas_call":
            # A kernel's inner reads and writes are of the chip's own fast memory.
            block_flops = self.region(params["jaxpr"], share, manual).flops
            return Count(block_flops * math.prod(params["grid_mapping"].grid), _moved(eqn) * share)
        if name in _WHOLE:
            return Count(bytes=_moved(eqn) * share)
        if name in _READS:
            return Count(bytes=2 * sum(map(_bytes, eqn.outvars)) * share)
        if name in _WRITES:
            return Count(bytes=2 * _bytes(eqn.invars[_WRITES[name]]) * share)
        return None


def _product(eqn: Any) -> float:
    """Count a matrix product: 2 operations per number of the result and number that is summed over."""
    (contracting_axes, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return (
        2.0
        * math.prod(eqn.outvars[0].aval.shape)
        * math.prod(shape[axis] for axis in contracting_axes)
    )


def _moved(eqn: Any) -> float:
    """Return the bytes of all operands and results."""
    return sum(map(_bytes, [*eqn.invars, *eqn.outvars]))


def _bytes(variable: Any) -> float:
    """Return the bytes of an array; 0 for anything else, such as a token that orders effects."""
    shape = getattr(variable.aval, "shape", ())
    dtype = getattr(variable.aval, "dtype", None)
    return float(math.prod(shape)) * getattr(dtype, "itemsize", 0)
