"""Checks every name that jaxppo uses of JAX and its libraries against wheels of any version, without importing them.

    python runs/newest_jax.py                     # downloads the newest wheels for Python 3.12
    python runs/newest_jax.py --python 3.13 --folder wheels
    python runs/newest_jax.py jax-0.12.0-py3-none-any.whl jaxlib-....whl

So an interpreter that JAX has left behind can tell whether jaxppo would run with it. Imports, assignments, classes,
stubs, submodules and tables of deprecations are followed through the sources; what is a value, or compiled code without
stubs, ends the search as found. Of functions the keywords of our calls are checked too. One line for each name that is
missing or deprecated; exit status 1 if there is one.
"""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax")
FOUND, MISSING, DEPRECATED = "found", "missing", "deprecated"


class Use(NamedTuple):
    """A place where a name of a library is used."""

    name: str  # in full, as in "jax.numpy.zeros"
    keywords: tuple[str, ...]  # of a call
    where: str  # file:line


class Answer(NamedTuple):
    """What the sources say of a name."""

    status: str  # FOUND, MISSING or DEPRECATED
    note: str = ""
    function: tuple[ast.FunctionDef, ...] = ()  # its definitions, where it is a plain function


def parse(file: Path) -> ast.Module:
    """Parse a source, also one in the syntax of Python 3.12, whose parameters of types an older one cannot read."""
    source = file.read_text(encoding="utf-8")
    try:
        return ast.parse(source)
    except SyntaxError:
        source = re.sub(
            r"^(\s*(?:async def|def|class) \w+)\[[^\n]*?\](?=[(:])",
            r"\1",
            source,
            flags=re.MULTILINE,
        )
        source = re.sub(
            r"^(\s*)type (\w+)(?:\[[^\n]*?\])? =", r"\1\2 =", source, flags=re.MULTILINE
        )
        try:
            return ast.parse(source)
        except SyntaxError as error:
            raise SystemExit(
                f"{file}: expected syntax that this Python reads, got {error}; take a newer one"
            ) from None


class Module:
    """What a source file binds at its top level."""

    def __init__(self, name: str, file: Path):
        self.name, self.file = name, file
        self.is_package = file.stem == "__init__"
        self.names: dict[str, list[ast.stmt]] = {}
        self.stars: list[ast.ImportFrom] = []
        self.deprecations: dict[str, ast.expr] = {}
        self.warning = ""
        """What it says of its own deprecation when it is imported."""
        self._collect(parse(file).body)

    def _collect(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            for inner in ("body", "orelse", "finalbody", "handlers"):  # of if, try, with
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self._collect(getattr(node, inner, []))
            for name in _bound(node):
                self.names.setdefault(name, []).append(node)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                self.stars.append(node)
            if "_deprecations" in _bound(node) and isinstance(
                value := getattr(node, "value", None), ast.Dict
            ):
                keys = (str(key.value) for key in value.keys if isinstance(key, ast.Constant))
                self.deprecations |= dict(zip(keys, value.values, strict=False))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                call = node.value
                words = [*call.args, *(keyword.value for keyword in call.keywords)]
                if any(
                    isinstance(word, ast.Name) and word.id == "DeprecationWarning" for word in words
                ):
                    self.warning = _text(call)

    def source_of(self, node: ast.ImportFrom) -> str:
        """The full name of the module that is imported from."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    @cached_property
    def offers(self) -> set[str] | None:
        """The names of `__all__`; None: it is not there, or not a plain list."""
        for node in self.names.get("__all__", []):
            value = getattr(node, "value", None)
            if isinstance(value, ast.List | ast.Tuple) and all(
                isinstance(item, ast.Constant) for item in value.elts
            ):
                return set(ast.literal_eval(value))
        return None


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds, without those of statements within it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names} - {"*"}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        n.id
        for target in targets
        if target is not None
        for n in ast.walk(target)
        if isinstance(n, ast.Name)
    }


class Sources:
    """Unpacked packages in a folder.

    Args:
        folder: with one folder for each package.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module by its full name; None: there is no source of it."""
        if name not in self._modules:
            path = self.folder.joinpath(*name.split("."))
            files = (
                *(path / f"__init__{kind}" for kind in (".py", ".pyi")),
                path.with_suffix(".py"),
            )
            file = next(
                (f for f in (*files, path.parent / f"{path.name}.pyi") if f.is_file()), None
            )
            self._modules[name] = Module(name, file) if file else None
        return self._modules[name]

    def is_folder(self, name: str) -> bool:
        """Whether a name is a folder of modules, with an `__init__` or without."""
        return self.folder.joinpath(*name.split(".")).is_dir()

    def has(self, name: str) -> bool:
        """Whether a name is a module: of sources, of stubs, compiled, or a folder."""
        path = self.folder.joinpath(*name.split("."))
        return (
            self.module(name) is not None
            or path.is_dir()
            or any(path.parent.glob(f"{path.name}.*"))
        )

    def resolve(self, name: str) -> Answer:
        """Follow a full name, as `jax.numpy.zeros`, to where it is defined."""
        package, *parts = name.split(".")
        return self._within(package, parts, frozenset())

    def _within(self, where: str, parts: list[str], seen: frozenset[tuple[str, str]]) -> Answer:
        """Look up `parts` in the module `where`."""
        module = self.module(where)
        if module is not None and module.warning:
            return Answer(DEPRECATED, module.warning)
        if not parts:
            return Answer(FOUND)
        name, *rest = parts
        below = f"{where}.{name}"
        if module is None:
            if not self.is_folder(where):  # compiled, or of a package that is not looked at
                return Answer(FOUND, f"{where} has no sources")
            return (
                self._within(below, rest, seen)
                if self.has(below)
                else Answer(MISSING, f"{where} has no {name}")
            )
        if name in module.deprecations:
            return _deprecated(module.deprecations[name])
        # A module that imports itself, as `from jax import numpy` within jax
        if (where, name) in seen:
            return (
                self._within(below, rest, seen)
                if self.has(below)
                else Answer(MISSING, f"{where} has no {name}")
            )
        for node in module.names.get(name, []):
            answer = self._bound_by(module, node, name, rest, seen | {(where, name)})
            if answer.status != MISSING:
                return answer._replace(function=_functions(module.names[name]) or answer.function)
        if self.has(below):
            return self._within(below, rest, seen)
        for star in module.stars:
            source = self.module(module.source_of(star))
            if (
                source
                and (source.offers is None or name in source.offers)
                and not name.startswith("_")
            ):
                answer = self._within(source.name, parts, seen | {(where, name)})
                if answer.status != MISSING:
                    return answer
        return Answer(MISSING, f"{where} has no {name}")

    def _bound_by(
        self,
        module: Module,
        node: ast.stmt,
        name: str,
        rest: list[str],
        seen: frozenset[tuple[str, str]],
    ) -> Answer:
        """Look up `rest` in what a statement binds to `name`."""
        if isinstance(node, ast.ImportFrom):
            alias = next(alias for alias in node.names if (alias.asname or alias.name) == name)
            return self._within(module.source_of(node), [alias.name, *rest], seen)
        if isinstance(node, ast.Import):
            alias = next(
                alias for alias in node.names if (alias.asname or alias.name.split(".")[0]) == name
            )
            return self._within(alias.name if alias.asname else name, rest, seen)
        if isinstance(node, ast.ClassDef) and rest and not node.bases:
            members = {member for statement in node.body for member in _bound(statement)}
            return (
                Answer(FOUND) if rest[0] in members else Answer(MISSING, f"{name} has no {rest[0]}")
            )
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and node.value.id != name
        ):
            return self._within(module.name, [node.value.id, *rest], seen)
        return Answer(FOUND)


def _functions(nodes: Sequence[ast.stmt]) -> tuple[ast.FunctionDef, ...]:
    return tuple(node for node in nodes if isinstance(node, ast.FunctionDef))


def _deprecated(value: ast.expr) -> Answer:
    """What a table of deprecations says: (message, what it stands for or None)."""
    message, stands_for = (
        value.elts if isinstance(value, ast.Tuple) and len(value.elts) == 2 else (value, None)
    )
    gone = isinstance(stands_for, ast.Constant) and stands_for.value is None
    return Answer(MISSING if gone else DEPRECATED, _text(message))


def _text(node: ast.expr) -> str:
    return "".join(
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def check(sources: Sources, use: Use) -> Answer:
    """What the sources say of a name and of the keywords that it is called with."""
    answer = sources.resolve(use.name)
    if (
        answer.status == FOUND
        and answer.function
        and all(f.args.kwarg is None for f in answer.function)
    ):
        taken = {arg.arg for f in answer.function for arg in (*f.args.args, *f.args.kwonlyargs)}
        if unknown := [keyword for keyword in use.keywords if keyword not in taken]:
            return Answer(MISSING, f"takes no {', '.join(unknown)}")
    return answer


def uses_in(file: Path, where: str) -> Iterator[Use]:
    """The names of the libraries that a file uses: imports, and attributes of what is imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    known[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
                    yield Use(alias.name, (), f"{where}:{node.lineno}")
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names if node.module.split(".")[0] in PACKAGES else ():
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield Use(f"{node.module}.{alias.name}", (), f"{where}:{node.lineno}")

    def full(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        base = full(node.value) if isinstance(node, ast.Attribute) else None
        return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := full(node)):
            yield Use(name, (), f"{where}:{node.lineno}")
        elif isinstance(node, ast.Call) and (name := full(node.func)):
            yield Use(
                name,
                tuple(word.arg for word in node.keywords if word.arg),
                f"{where}:{node.lineno}",
            )


def unpack(wheels: Sequence[Path], folder: Path) -> list[str]:
    """Unpack sources and stubs, and of compiled modules the names; returns name and version of each wheel."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                folder, [name for name in archive.namelist() if name.endswith((".py", ".pyi"))]
            )
            for path in (
                folder / name for name in archive.namelist() if name.endswith((".so", ".pyd"))
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    return [" ".join(wheel.name.split("-")[:2]) for wheel in wheels]


def download(folder: Path, python: str) -> list[Path]:
    """The newest wheels for a version of Python, by pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    subprocess.run(
        [*command, "--python-version", python, "--dest", str(folder), *PROJECTS], check=True
    )
    return sorted(folder.glob("*.whl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="*", type=Path, help="default: the newest, downloaded")
    parser.add_argument("--python", default="3.12", help="version of Python to download wheels for")
    parser.add_argument(
        "--folder", type=Path, help="where downloaded wheels are kept; default: nowhere"
    )
    parser.add_argument(
        "--package", type=Path, default=ROOT / "jaxppo", help="sources whose uses are checked"
    )
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        wheels = args.wheels or download(args.folder or Path(scratch) / "wheels", args.python)
        unpacked = Path(scratch) / "unpacked"
        versions = unpack(wheels, unpacked)
        sources = Sources(unpacked)
        files = sorted(args.package.rglob("*.py"))
        uses = [
            use
            for file in files
            for use in uses_in(file, file.relative_to(args.package.parent).as_posix())
        ]
        uses = [use for use in uses if sources.is_folder(use.name.split(".")[0])]
        bad = [(use, answer) for use in uses if (answer := check(sources, use)).status != FOUND]
    for use, answer in dict.fromkeys(bad):
        print(f"{answer.status} {use.name} at {use.where}: {answer.note}")
    names = len({use.name for use in uses})
    print(
        f"{names} names of {', '.join(versions)}: {len({use.name for use, _ in bad})} missing or deprecated"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
