"""The rooms of the package in the order of the layering: a room imports only from rooms above it.

The one table behind `test_architecture.py`, and behind the picture and the table of docs/architecture.md.
"""

from typing import NamedTuple


class Room(NamedTuple):
    """A row of the table.

    Attributes:
        names: files or folders of `jaxppo/`, without `.py`; `*/__main__` are the commands that open a room.
        purpose: what the room is for, in one sentence.
    """

    names: tuple[str, ...]
    purpose: str


ROOMS = (
    Room(("errors", "types"), "exceptions a user meets; pytrees between the stages and the letters of their shapes"),
    Room(("config",), "every setting by what it configures; presets, YAML and flags; redaction; cache paths"),
    Room(("planning",), "PDDL and plans: language, validators, planners, domains, prompts, data sets; never JAX"),
    Room(("parallel",), "devices, processes, and how parameters are split over them"),
    Room(("run",), "the life of a run: folder, checkpoints, logs, metrics, trackers, console, and the one loop"),
    Room(("toys",), "small models and data for recipes without a network"),
    Room(("data",), "rows, tokens, batches, chat templates, preferences"),
    Room(("nn",), "architectures and layers, a family in one place; LoRA; log-probabilities of heads"),
    Room(("models",), "init, apply, KV cache and heads of any architecture"),
    Room(("hf",), "Hugging Face and PEFT folders in and out"),
    Room(
        ("profiling",),
        "what an update costs: memory, FLOPs, throughput, traces, compilation, absent targets",
    ),
    Room(("rl",), "rollout, advantages, losses, update; an algorithm is a file and a row of one table"),
    Room(("rewards",), "the reward protocol: functions called, added up, their failures dealt with"),
    Room(("reward_functions",), "built-in rewards: plans, reward models, sentiment, HTTP, isolated processes"),
    Room(("evaluate",), "answers to held-out rows: generated, judged, measured, compared"),
    Room(("report",), "everything drawn: the pages of runs and evaluations"),
    Room(
        (
            *("train", "self_train", "sft", "reward_model", "reward_server", "export", "metrics", "doctor"),
            *("*/__main__", "__main__", "__init__"),
        ),
        "the commands: set up, the straight line, done",
    ),
)

PLANNING = ("language", "validate", "transform", "solve", "domains", "prompts", "datasets", "importing", "answers")
"""The rooms inside of planning, in the same order; `planning/__init__` offers names of all of them."""
