"""The life of a run: folder, checkpoints, logs, metrics, trackers, console, and the loop around every training step.

In: a step function and its settings. Out: a run folder that can be resumed.
"""

__all__ = [
    "activity",
    "alarms",
    "cache_folder",
    "checkpoints",
    "cli",
    "console",
    "folder",
    "headline",
    "jsonl",
    "lock",
    "loop",
    "metrics",
    "preemption",
    "trackers",
    "trends",
]
