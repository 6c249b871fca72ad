"""What an update costs: memory, FLOPs, throughput, compilation, traces, absent targets.

In: model shapes and settings. Out: numbers for the plan of a run and for its metrics.
"""

__all__ = [
    "aim",
    "aot",
    "compilation",
    "flops",
    "halving",
    "memory",
    "meter",
    "peak_memory",
    "sizes",
]
