"""Holds the layering of `tests/rooms.py`, which has no exceptions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import jaxppo
from tests.rooms import PLANNING, ROOMS

PACKAGE = Path(jaxppo.__file__).parent
LEVEL = {name: level for level, room in enumerate(ROOMS) for name in room.names}
COMMANDS = LEVEL["train"]

# Packages and names with one home.
ONLY_IN = {"flax": ("nn/", "models.py"), "orbax": ("run/checkpoints.py",)}
PARALLEL_NAMES = {"Mesh", "NamedSharding", "shard_map", "pmap"}

# What computes rewards and judges plans on the host: importing it loads no JAX, and no library of models.
HOST = ("planning/", "rewards.py", "reward_functions/plan.py", "reward_functions/sentiment.py", "evaluate/intervals.py")
HOST += ("reward_functions/isolated.py",)
HOST += ("reward_functions/http_client.py", "reward_functions/http_contract.py")
HOST += ("evaluate/answers/",)
HOST += ("evaluate/predictions.py", "evaluate/comparison.py", "evaluate/plan_metrics.py", "evaluate/plan_scores.py")
NEVER_ON_THE_HOST = {"flax", "jax"}

# Formulas take arrays and plain scalars.
FORMULAS = ("rl/advantages.py", "rl/losses.py", "rl/ops.py", "nn/")


def module_files() -> list[str]:
    return sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def level_of(file: str) -> int | None:
    """The row of a file or module name of the package; None: it has none."""
    return COMMANDS if file.endswith("/__main__.py") else LEVEL.get(file.split("/")[0].removesuffix(".py"))


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


def file_of(module: str) -> str | None:
    """The file of a module of the package, None for any other name; a missing submodule is a name of its parent."""
    if not module.startswith("jaxppo."):
        return None
    path = module.removeprefix("jaxppo.").replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if (PACKAGE / f).is_file()), None)


@cache
def offers(folder: str) -> set[str] | None:
    """The names in `__all__` of a room's `__init__`; None for a module, whose names are its own affair."""
    path = PACKAGE / folder / "__init__.py"
    if not path.is_file():
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def layering(file: str, modules: set[str]) -> Iterator[str]:
    """Imports that go down the table, or past what a room offers."""
    level = level_of(file)
    if level is None:
        yield f"{file} has no room"
        return
    room = file.split("/")[0].removesuffix(".py")
    for other in sorted({found for module in modules if (found := file_of(module))}):
        at = level_of(other)
        if at is None or at > level:
            yield f"{file} (row {level}) imports {other} (row {at})"
        if at == COMMANDS and not room.startswith("__") and room != other.split("/")[0].removesuffix(".py"):
            yield f"{file} imports {other}, a command"
    for module in sorted(modules):
        parts = module.split(".")[1:] if module.startswith("jaxppo.") else []
        for depth in (1, 2) if parts[:1] == ["planning"] else (1,):
            folder, name = "/".join(parts[:depth]), parts[depth] if len(parts) > depth else "__main__"
            open_to_all = name == "__main__" or (folder == "planning" and name in PLANNING) or offers(folder) is None
            if not file.startswith(f"{folder}/") and not open_to_all and name not in offers(folder):
                yield f"{file} imports {module}, which {folder} does not offer"


def planning_order(file: str, modules: set[str]) -> Iterator[str]:
    """Imports inside of planning that go down its own table."""
    own = file.split("/")[1] if file.startswith("planning/") else None
    if own not in PLANNING:
        return
    for other in sorted({found for module in modules if (found := file_of(module))}):
        parts = other.split("/")
        if parts[:2] == ["planning", "__init__.py"] and "jaxppo.planning" in modules:
            # `from jaxppo.planning import x` of a name, not of a room below
            names = {module.split(".")[2] for module in modules if module.startswith("jaxppo.planning.")}
            if any(not (PACKAGE / "planning" / name).exists() for name in names):
                yield f"{file} imports from planning itself"
        elif parts[0] == "planning" and parts[1] in PLANNING and PLANNING.index(parts[1]) > PLANNING.index(own):
            yield f"{file} imports {other}, a later room of planning"


def violations(file: str, source: str) -> list[str]:
    """The rules that one file of the package breaks."""
    tree = ast.parse(source)
    modules = set(imported_modules(file, tree))
    packages = {module.split(".")[0] for module in modules}
    found = [*layering(file, modules), *planning_order(file, modules)]
    for package, homes in ONLY_IN.items():
        if package in packages and not file.startswith(homes):
            found.append(f"{file} imports {package}")
    if file.startswith(HOST) and file != "planning/__main__.py":
        found += [f"{file} imports {package}" for package in sorted(NEVER_ON_THE_HOST & packages)]
    if file.startswith(FORMULAS) and any(module.startswith("jaxppo.config") for module in modules):
        found.append(f"{file} imports settings")
    if not file.startswith("parallel/"):
        found += [f"{file} uses {name}" for name in sorted(PARALLEL_NAMES & used_names(tree))]
    return found


def test_every_module_keeps_the_layering():
    sources = {file: (PACKAGE / file).read_text(encoding="utf-8") for file in module_files()}
    found = [violation for file, source in sources.items() for violation in violations(file, source)]
    assert found == []


def test_the_table_names_what_there_is():
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 28  # few
    rooms = {path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms == set(LEVEL) - {"*/__main__"}
    assert {path.name for path in (PACKAGE / "planning").iterdir() if (path / "__init__.py").is_file()} == set(PLANNING)


@pytest.mark.parametrize("room", [name for room in ROOMS for name in room.names if (PACKAGE / name).is_dir()])
def test_a_room_says_what_it_is_in_six_lines(room):
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    text = ast.get_docstring(tree)
    assert text and len(text.splitlines()) <= 6


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("brand_new.py", "", "brand_new.py has no room"),
        ("rl/ops.py", "from jaxppo.rewards import call", "rl/ops.py (row 11) imports rewards.py (row 12)"),
        ("rl/ops.py", "def f():\n    from .. import rewards", "rl/ops.py (row 11) imports rewards.py (row 12)"),
        ("rl/ops.py", "from jaxppo.config import PeftConfig", "rl/ops.py imports settings"),
        ("run/metrics.py", "from jaxppo.train import main", "run/metrics.py imports train.py, a command"),
        ("hf/folders.py", "from flax import nnx", "hf/folders.py imports flax"),
        ("rewards.py", "import jax.numpy as jnp", "rewards.py imports jax"),
        (
            "planning/language/plans.py",
            "from jaxppo.planning.validate import val",
            "planning/language/plans.py imports planning/validate/val.py, a later room of planning",
        ),
        (
            "planning/solve/search.py",
            "from jaxppo.planning import validate_plan",
            "planning/solve/search.py imports from planning itself",
        ),
        (
            "rl/update.py",
            "from jaxppo.hf.names import head_of",
            "rl/update.py imports jaxppo.hf.names, which hf does not offer",
        ),
        ("planning/__main__.py", "from jaxppo.run import cli\nfrom jaxppo.planning import validate_plan", None),
        ("rl/update.py", "from jax.sharding import Mesh as M", "rl/update.py uses Mesh"),
        ("parallel/devices.py", "from jax.sharding import Mesh, NamedSharding", None),
    ],
)
def test_violations_finds_each_kind(file, source, expected):
    found = violations(file, source)
    assert expected in found if expected else not found, found


def loaded_after_importing(files: list[str]) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after importing these files of the package."""
    names = [".".join(["jaxppo", *file.removesuffix(".py").split("/")]).removesuffix(".__init__") for file in files]
    code = "\n".join(f"import {name}" for name in names) + "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_importing_loads_no_torch_and_for_rewards_on_the_host_no_jax():
    loaded = loaded_after_importing([file for file in module_files() if not file.endswith("__main__.py")])
    assert "jax" in loaded
    assert "torch" not in loaded
    host = [file for file in module_files() if file.startswith(HOST) and not file.endswith("__main__.py")]
    loaded = loaded_after_importing(host)
    assert "jaxppo" in loaded
    assert not loaded & (NEVER_ON_THE_HOST | {"torch", "transformers"})
