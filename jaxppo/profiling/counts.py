"""What a program computes, moves and sends on one device, counted from its trace with loops multiplied out.

Counted are the operations of matrix products, 2 for each multiplication; the bytes that have to pass between memory and
processor: operands and results of products, and of what gathers, sorts and communicates; and what travels between
devices, which the programs name themselves (`DataParallel.map`). Element-wise operations are taken to be part of the
products beside them, so the bytes are a lower bound.

XLA's own `cost_analysis` counts the body of a loop once, of layers and of decoding (docs/accelerators.md says by how
much that is too little), and says nothing on a GPU.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.interpreters import partial_eval

Sent = Mapping[tuple[str, tuple[str, ...]], float]
"""(kind of collective, axes of the devices) -> bytes of what is gathered, summed up or handed on."""

_COLLECTIVES = {
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}
"""Operations of JAX that exchange arrays, by the names that XLA has for them."""

_WHOLE = ("sort", "top_k", "cumsum")
"""Operations that read all of their operands and write all of their results, as collectives do."""

_READS = ("gather", "dynamic_slice", "slice")
"""They read as much as they return."""

_WRITES = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2, "scatter_add": 2}
"""They write into an operand, in place: which operand holds what is written."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters that hold what a call calls."""


class Count(NamedTuple):
    """What one device does, once through."""

    flops: float = 0.0
    bytes: float = 0.0
    sent: Sent = MappingProxyType({})

    def times(self, factor: float) -> "Count":
        """Return the counts of as many runs."""
        sent = {collective: size * factor for collective, size in self.sent.items()}
        return Count(
            flops=self.flops * factor,
            bytes=self.bytes * factor,
            sent=sent,
        )

    def plus(self, following: "Count") -> "Count":
        """Return the counts of one after the other."""
        sent = dict(self.sent)
        for collective, size in following.sent.items():
            sent[collective] = sent.get(collective, 0.0) + size
        return Count(
            flops=self.flops + following.flops,
            bytes=self.bytes + following.bytes,
            sent=sent,
        )


def of_program(traced: jex.ClosedJaxpr, trips: int = 1) -> Count:
    """Count what one device does in a program.

    Args:
        traced: a program, for instance `jax.jit(f).trace(*shapes).jaxpr`.
        trips: rounds of loops that say when they are done and not how often they go round; decoding is one.
    """
    # A trace holds operations whose results nobody reads;
    # compilers drop them, so they are not counted.
    all_results = [True] * len(traced.jaxpr.outvars)
    live_jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, all_results)
    return _Counter(trips).body(live_jaxpr)


class _Counter:
    """Walks through a trace."""

    def __init__(self, trips: int):
        self._trips = trips
        self._axis_sizes: dict[str, int] = {}  # of the mesh

    def body(self, jaxpr: Any) -> Count:
        """Count one round of a body."""
        total = Count()
        for eqn in jaxpr.eqns:
            total = total.plus(self._operation(eqn))
        return total

    def _operation(self, eqn: Any) -> Count:
        name = eqn.primitive.name
        params = eqn.params
        if name == "scan":
            return self.body(params["jaxpr"].jaxpr).times(params["length"])
        if name == "while":
            condition = self.body(params["cond_jaxpr"].jaxpr)
            return self.body(params["body_jaxpr"].jaxpr).plus(condition).times(self._trips)
        if name == "cond":
            # Which branch is taken is not in the trace: the most expensive one counts.
            branches = [self.body(branch.jaxpr) for branch in params["branches"]]
            return max(branches, key=lambda count: (count.flops, count.bytes))
        if name == "pallas_call":
            # A kernel's inner reads and writes are of the chip's own fast memory.
            block = self.body(params["jaxpr"])
            num_blocks = math.prod(params["grid_mapping"].grid)
            return Count(block.flops * num_blocks, _moved(eqn))
        if name == "shard_map":
            self._axis_sizes = dict(params["mesh"].shape)
        callee = next((params[body] for body in _BODIES if body in params), None)
        if callee is not None:
            return self.body(getattr(callee, "jaxpr", callee))
        if name == "dot_general":
            return Count(_product(eqn), _moved(eqn))
        if name in _COLLECTIVES:
            return Count(bytes=_moved(eqn), sent=self._sent(eqn))
        if name in _WHOLE:
            return Count(bytes=_moved(eqn))
        # Twice, since each number is read in one place and written in another.
        if name in _READS:
            return Count(bytes=2 * sum(map(_bytes, eqn.outvars)))
        if name in _WRITES:
            return Count(bytes=2 * _bytes(eqn.invars[_WRITES[name]]))
        return Count()

    def _sent(self, eqn: Any) -> Sent:
        """Return the bytes of the whole that is gathered, summed up, scattered or handed on."""
        named_axes = eqn.params.get("axes", eqn.params.get("axis_name"))
        if isinstance(named_axes, str):
            named_axes = (named_axes,)
        # Along an axis of one device nothing travels.
        axes = tuple(axis for axis in named_axes if self._axis_sizes.get(axis, 1) > 1)
        if not axes:
            return {}
        # The whole is what a gather returns, and what a scatter takes: the larger side.
        size = max(sum(map(_bytes, eqn.invars)), sum(map(_bytes, eqn.outvars)))
        return {(_COLLECTIVES[eqn.primitive.name], axes): size}


def _product(eqn: Any) -> float:
    """Count a matrix product: 2 operations per number of the result and number that is summed over."""
    (contracting_axes, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    summed = math.prod(shape[axis] for axis in contracting_axes)
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * summed


def _moved(eqn: Any) -> float:
    """Return the bytes of all operands and results."""
    return sum(map(_bytes, [*eqn.invars, *eqn.outvars]))


def _bytes(variable: Any) -> float:
    """Return the bytes of an array; 0 for anything else, such as a token that orders effects."""
    shape = getattr(variable.aval, "shape", ())
    dtype = getattr(variable.aval, "dtype", None)
    return float(math.prod(shape)) * getattr(dtype, "itemsize", 0)
