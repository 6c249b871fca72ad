"""What `--help` prints: the settings that a newcomer needs, in the order of use; with `--help_all` all of them."""

import ast
import dataclasses
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

_WIDTH = 110


def show_help(config_class: Any, command: str, names: list[str], args: list[str]) -> None:
    """Print the help where a command line asks for it, and exit.

    Args:
        config_class: configuration of the command; its `FIRST` has the flags of `--help`, each in an example.
        command: its name.
        names: its flags.
        args: the command line.
    """
    asked = {arg.replace("-", "_") for arg in args} & {"_h", "__help", "__help_all"}
    if asked:
        _print_help(config_class, command, names, everything="__help_all" in asked)


def _print_help(config_class: Any, command: str, names: list[str], everything: bool) -> NoReturn:
    try:
        for part in _parts(config_class, command, names, everything):
            print(part, flush=True)
    except BrokenPipeError:  # who reads it has enough, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _parts(config_class: Any, command: str, names: list[str], everything: bool) -> Iterator[str]:
    """Yield what is printed, part by part."""
    examples = [] if everything else getattr(config_class, "FIRST", ())
    yield f"usage: python -m jaxppo.{command} [flags]\n\n{summary(config_class)}\n"
    if examples:
        yield f"{len(examples)} of its {len(names)} flags, in the order of use; --help_all explains all of them.\n"
        flags = dict(_described(config_class, names))
        for example in examples:
            yield f"{flags[example.split()[0].removeprefix('--')]}      e.g. {example}\n"
        return
    for group in _groups(config_class):
        texts = [text for name, text in _described(group, names, inside=False)]
        if texts:
            yield f"{group.__name__}: {summary(group)}\n\n" + "\n".join(texts)


def _described(config_class: Any, names: Collection[str], inside: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the settings of a class, with or without those of its groups, each with its lines of help."""
    meaning = meanings(config_class)
    config = config_class()
    for spec in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(spec.type):
            if inside:
                yield from _described(spec.type, names)
        elif spec.name in names:
            default = getattr(config, spec.name)
            usual = "" if default is None or default == () else f"  (default: {as_text(default)})"
            text = textwrap.indent(textwrap.fill(meaning[spec.name], _WIDTH - 6), " " * 6)
            yield spec.name, f"  --{spec.name} {type_text(spec.type, FLAG_WORDS)}{usual}\n{text}\n"


def _groups(config_class: Any) -> list[Any]:
    """Return the groups of a command, and after them the command, for its own settings."""
    groups = [spec.type for spec in dataclasses.fields(config_class) if dataclasses.is_dataclass(spec.type)]
    return [*groups, config_class]


def meanings(settings: Any) -> dict[str, str]:
    """Return what the text under each field of a class says, on one line each."""
    (definition,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


class TypeWords(NamedTuple):
    """How the type of a setting is written, in one of the places where it is."""

    basic: dict[Any, str]  # of types without parts
    alternatives: str  # between types of which a value has one
    choices: Callable[[Sequence[str]], str]
    none: str | None = None  # for settings that may be None; None: that is not written


FLAG_WORDS = TypeWords(
    basic={str: "TEXT", int: "INTEGER", float: "NUMBER", bool: "[True|False]", dict: "JSON"},
    alternatives="|",
    choices=lambda names: f"{{{','.join(names)}}}",
)
"""After a flag in `--help`."""


def type_text(annotation: Any, words: TypeWords) -> str:
    """Return the type of a setting as words; several values are written as `...`.

    Args:
        annotation: of its field.
        words: for the place where it is written.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return words.choices(arguments)
    if origin is Annotated:  # `checks.choices`, or a mapping
        names = arguments[1].metavar
        return words.choices(names.strip("{}").split(",")) if names.startswith("{") else words.basic[dict]
    if origin in (Union, types.UnionType):
        kinds = [type_text(argument, words) for argument in arguments if argument is not type(None)]
        if words.none is not None and type(None) in arguments:
            kinds.append(words.none)
        return words.alternatives.join(kinds)
    if origin is tuple and arguments[-1] is ...:
        return f"{type_text(arguments[0], words)} ..."
    if origin is tuple:
        return " ".join(type_text(argument, words) for argument in arguments)
    return words.basic[annotation]


def as_text(value: Any) -> str:
    """Return a value as a command line has it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def summary(settings: Any) -> str:
    """Return the first line of what the text under a class says."""
    return (settings.__doc__ or "").partition("\n")[0]
