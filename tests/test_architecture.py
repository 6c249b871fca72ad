"""Holds the layering: who may import whom, and where the names that shape a program may appear.

A new module fails here until it has a level, which is the moment to decide where it belongs.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxppo

PACKAGE = Path(jaxppo.__file__).parent

# What judges plans after they were made.
PLAN_ROOMS = {"plan_answers", "plan_charts", "plan_comparison", "plan_metrics", "plan_page", "plan_scores"}
PLAN_ROOMS |= {"html_page", "plan_sections"}

# What a run was like, told after it, or while it goes on.
REPORT_ROOMS = {"line_charts", "report_checks", "report_comparison", "report_curves", "report_page", "report_run"}
REPORT_ROOMS |= {"report_samples"}

# A room is a module of the package or a folder of it; it imports rooms of lower levels. "jaxppo" is __init__.py.
# The commands of planning/ and toys/ lie in these folders, but are rooms of their own.
LEVELS = [
    {"cache", "jaxppo", "config", "config_sources", "errors", "preemption", "redact", "types"},
    {"advantages", "chat", "clock", "families", "intervals", "logprobs", "losses", "ops", "planning"}
    | {"logs", "processes", "reward_contract", "toys"},
    {"config_page", "data", "flops", "memory", "models", "parallel", "plan_reward", "preferences", "reward_client"}
    | {"reward_workers", "rewards", "sentiment"},
    {
        "checkpoint",
        "cli",
        "compilation",
        "console",
        "curves",
        "health",
        "hf",
        "live_view",
        "lora",
        "metrics",
        "model_card",
        "model_files",
    }
    | {
        "evaluator",
        "learned_reward",
        "model_files",
        "optimizer",
        "padding",
        "ppo",
        "profiling",
        "reward_scores",
        "reward_sources",
        "rollout",
        "run_folder",
        "throughput",
        "trackers",
        "trajectories",
        "update",
        "vitals",
    }
    | PLAN_ROOMS
    | REPORT_ROOMS,
    {
        "evaluate",
        "export",
        "planning/__main__",
        "report",
        "reward_model",
        "reward_server",
        "sft",
        "supervised",
        "toys/__main__",
        "train",
    }
    | {"__main__", "doctor", "doctor_checks"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

# Same-level imports, one decision a line; among the commands they mean functions of the other command.
SAME_LEVEL = {
    ("config", "errors"),
    ("config_sources", "errors"),
    ("config_sources", "redact"),
    ("advantages", "ops"),
    ("logprobs", "ops"),
    ("losses", "ops"),
    ("hf", "model_files"),
    ("run_folder", "console"),
    ("lora", "hf"),
    ("lora", "model_files"),
    ("preferences", "data"),
    ("rewards", "plan_reward"),
    ("reward_workers", "rewards"),
    *(("reward_sources", room) for room in ("health", "hf", "learned_reward", "lora")),
    ("learned_reward", "hf"),
    ("learned_reward", "lora"),
    ("learned_reward", "model_files"),
    ("learned_reward", "reward_scores"),
    ("update", "optimizer"),
    ("update", "padding"),
    ("update", "rollout"),
    ("ppo", "lora"),
    ("ppo", "optimizer"),
    ("ppo", "padding"),
    ("ppo", "rollout"),
    ("ppo", "trajectories"),
    ("ppo", "update"),
    ("health", "console"),
    ("health", "logs"),
    ("cli", "console"),
    ("console", "live_view"),
    ("trackers", "console"),
    ("trackers", "live_view"),
    ("profiling", "compilation"),
    ("profiling", "console"),
    ("model_card", "console"),
    ("plan_scores", "plan_answers"),
    *(("plan_metrics", room) for room in ("plan_answers", "plan_scores")),
    *(("plan_comparison", room) for room in ("plan_answers", "plan_metrics")),
    ("html_page", "console"),
    ("plan_charts", "html_page"),
    *(("plan_sections", room) for room in ("html_page", "plan_charts", "plan_comparison", "plan_metrics")),
    *(("plan_page", room) for room in ("console", "html_page", "plan_answers", "plan_sections")),
    *(("evaluator", room) for room in ("console", "plan_answers", "plan_metrics", "reward_sources", "rollout")),
    ("line_charts", "html_page"),
    *(("report_run", room) for room in ("logs", "metrics", "run_folder")),
    *(("report_checks", room) for room in ("health", "line_charts", "metrics", "report_run")),
    *(("report_curves", room) for room in ("html_page", "line_charts", "metrics", "plan_charts")),
    *(("report_curves", room) for room in ("report_checks", "report_run")),
    *(("report_samples", room) for room in ("console", "html_page", "logs", "plan_metrics", "report_run")),
    *(("report_page", room) for room in ("console", "html_page", "line_charts", "plan_sections")),
    *(("report_page", room) for room in REPORT_ROOMS - {"report_comparison", "report_page"}),
    *(("report_comparison", room) for room in ("html_page", "plan_sections")),
    *(("report_comparison", room) for room in REPORT_ROOMS - {"report_comparison", "report_samples"}),
    ("doctor", "doctor_checks"),
    ("doctor_checks", "train"),
    ("train", "export"),
    ("train", "supervised"),
    ("sft", "export"),
    ("sft", "supervised"),
    ("reward_model", "export"),
    ("reward_model", "supervised"),
}

# Packages and names with one home.
ONLY_IN = {
    "flax": {"families/gpt2.py", "families/gpt_neox.py", "families/layers.py", "models.py"},
    "orbax": {"checkpoint.py"},
    "subprocess": {"planning/planner_process.py", "planning/val.py", "reward_workers.py", "toys/__init__.py"},
}
PARALLEL_NAMES = {"Mesh", "NamedSharding", "shard_map", "pmap"}

# What a room never imports.
NEVER = {
    "planning": {"flax", "jax", "transformers"},
    "reward_client": {"flax", "jax"},
    "reward_contract": {"flax", "jax"},
    "rewards": {"flax", "jax"},
    "plan_reward": {"flax", "jax"},
    "reward_workers": {"flax", "jax"},
    "sentiment": {"flax", "jax"},
    "intervals": {"flax", "jax"},
    **{room: {"flax", "jax"} for room in PLAN_ROOMS},
    "families": {
        "jaxppo.config",
        "jaxppo.config.sources",
        "jaxppo.run.preemption",
        "jaxppo.config.redact",
        "jaxppo.types",
    },
    "advantages": {"jaxppo.config", "jaxppo.config.sources"},
    "losses": {"jaxppo.config", "jaxppo.config.sources"},
    "ops": {"jaxppo.config", "jaxppo.config.sources"},
}


def module_files() -> list[str]:
    return sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def room_of(file: str) -> str:
    if file.endswith("/__main__.py"):
        return file.removesuffix(".py")
    name = file.split("/")[0].removesuffix(".py")
    return "jaxppo" if name == "__init__" else name


def imported_modules(file: str, tree: ast.Module) -> Iterator[str]:
    """Full names of everything a file imports, also inside functions; `from a import b` gives `a` and `a.b`."""
    folder = ["jaxppo", *file.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def used_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.update(node.name.split("."))
    return names


def violations(file: str, source: str) -> list[str]:
    """The rules that one file of the package breaks."""
    room, tree = room_of(file), ast.parse(source)
    if room not in LEVEL:
        return [f"{room} has no level"]
    modules = set(imported_modules(file, tree))
    rooms = {module.split(".")[1] for module in modules if module.startswith("jaxppo.")} & LEVEL.keys()
    found = [
        f"{room} (level {LEVEL[room]}) imports {other} (level {LEVEL[other]})"
        for other in rooms - {room}
        if LEVEL[other] >= LEVEL[room] and (room, other) not in SAME_LEVEL
    ]
    for package, homes in ONLY_IN.items():
        if file not in homes and package in {module.split(".")[0] for module in modules}:
            found.append(f"{package} is imported outside {sorted(homes)}")
    for banned in NEVER.get(room, ()):
        if any(module == banned or module.startswith(f"{banned}.") for module in modules):
            found.append(f"{room} imports {banned}")
    if file not in ("parallel.py", "families/partition.py"):
        found += [f"{name} is used outside parallel.py" for name in PARALLEL_NAMES & used_names(tree)]
    return sorted(found)


@pytest.mark.parametrize("file", module_files())
def test_module_keeps_the_layering(file):
    assert violations(file, (PACKAGE / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("brand_new.py", "", ["brand_new has no level"]),
        ("ops.py", "from jaxppo.models import apply", ["ops (level 1) imports models (level 2)"]),
        ("ops.py", "from jaxppo import losses", ["ops (level 1) imports losses (level 1)"]),
        ("ops.py", "def f():\n    import jaxppo.rl.losses", ["ops (level 1) imports losses (level 1)"]),
        ("ops.py", "from . import losses", ["ops (level 1) imports losses (level 1)"]),
        ("ops.py", "from .losses import f", ["ops (level 1) imports losses (level 1)"]),
        ("ops.py", "from jaxppo.config import PPOConfig", ["ops imports jaxppo.config"]),
        ("planning/domains/logistics.py", "from ...ops import f", ["planning (level 1) imports ops (level 1)"]),
        ("planning/plans.py", "from .ops import f", []),  # planning/ops.py, not jaxppo/rl/ops.py
        ("metrics.py", "from jaxppo.train import main", ["metrics (level 3) imports train (level 4)"]),
        ("sft.py", "from jaxppo import train", ["sft (level 4) imports train (level 4)"]),
        ("train.py", "from jaxppo import __version__, export\nfrom jaxppo.rl.update import update", []),
        ("hf.py", "from flax import nnx", [f"flax is imported outside {sorted(ONLY_IN['flax'])}"]),
        ("families/config.py", "from flax import nnx", [f"flax is imported outside {sorted(ONLY_IN['flax'])}"]),
        ("families/gpt2.py", "from flax import nnx\nfrom jaxppo.nn.config import Family", []),
        ("families/gpt2.py", "from jaxppo.config import PPOConfig", ["families imports jaxppo.config"]),
        ("families/gpt2.py", "from jaxppo.models import apply", ["families (level 1) imports models (level 2)"]),
        ("models.py", "from flax import nnx", []),
        ("train.py", "import orbax.checkpoint as ocp", ["orbax is imported outside ['checkpoint.py']"]),
        ("planning/val.py", "import subprocess", []),
        ("rewards.py", "import subprocess", [f"subprocess is imported outside {sorted(ONLY_IN['subprocess'])}"]),
        ("rewards.py", "import jax.numpy as jnp", ["rewards imports jax"]),
        ("planning/plans.py", "import jax", ["planning imports jax"]),
        ("planning/build.py", "from jaxppo.run.console import f", ["planning (level 1) imports console (level 3)"]),
        ("planning/__main__.py", "from jaxppo import cli, console\nfrom jaxppo.planning import pddl", []),
        ("planning/plans.py", "from transformers import AutoTokenizer", ["planning imports transformers"]),
        ("update.py", "import jax\nstep = jax.pmap(f)", ["pmap is used outside parallel.py"]),
        ("update.py", "from jax.sharding import Mesh as M", ["Mesh is used outside parallel.py"]),
        ("update.py", "from jax.experimental.shard_map import shard_map", ["shard_map is used outside parallel.py"]),
        ("update.py", "mode = 'pmap'", []),
        ("parallel.py", "from jax.sharding import Mesh, NamedSharding", []),
    ],
)
def test_violations_finds_each_kind(file, source, expected):
    assert violations(file, source) == expected


def loaded_after_importing(files: list[str]) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after importing these files of the package."""
    names = [".".join(["jaxppo", *file.removesuffix(".py").split("/")]).removesuffix(".__init__") for file in files]
    code = "\n".join(f"import {name}" for name in names) + "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_importing_the_package_does_not_import_torch():
    loaded = loaded_after_importing([file for file in module_files() if not file.endswith("__main__.py")])
    assert "jax" in loaded
    assert "torch" not in loaded


HOST_ROOMS = {"planning", "plan_reward", "reward_workers", "reward_client", "reward_contract", "rewards", "sentiment"}
HOST_ROOMS |= {"intervals"} | PLAN_ROOMS


def test_importing_what_computes_rewards_on_the_host_does_not_import_jax():
    host = [file for file in module_files() if room_of(file) in HOST_ROOMS]
    loaded = loaded_after_importing([file for file in host if not file.endswith("__main__.py")])
    assert "jaxppo" in loaded
    assert not loaded & {"flax", "jax", "torch", "transformers"}
