"""What `--help` prints: the settings that a newcomer needs, in the order of use; with `--help_all` all of them."""

import ast
import dataclasses
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

_WIDTH = 110


def show_help(config_class: Any, command: str, names: list[str], args: list[str]) -> None:
    """Print the help where a command line asks for it, and exit.

    Args:
        config_class: configuration of the command; its `FIRST` has the flags of `--help`, each in an example.
        command: its name.
        names: its flags.
        args: the command line.
    """
    # Not left to tyro: its help has all flags, and the page would be longer than a newcomer reads.
    flags = {arg.replace("-", "_") for arg in args} & {"_h", "__help", "__help_all"}
    if not flags:
        return
    try:
        for part in _parts(config_class, command, names, everything="__help_all" in flags):
            print(part, flush=True)
    except BrokenPipeError:  # the reader has enough, as in `--help | head`
        # Python writes out standard output once more at
        # exit, which would fail again: into nothing with it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _parts(config_class: Any, command: str, names: list[str], everything: bool) -> Iterator[str]:
    """Yield what is printed, part by part."""
    examples = [] if everything else getattr(config_class, "FIRST", ())
    yield f"usage: python -m jaxppo.{command} [flags]\n\n{summary(config_class)}\n"
    if examples:
        yield f"{len(examples)} of its {len(names)} flags, in the order of use; --help_all explains all of them.\n"
        flags = dict(_setting_texts(config_class, names))
        for example in examples:
            yield f"{flags[example.split()[0].removeprefix('--')]}      e.g. {example}\n"
        return
    # The command comes after its groups, for its own settings.
    for group in [*groups_of(config_class).values(), config_class]:
        texts = [text for _, text in _setting_texts(group, names, with_groups=False)]
        if texts:
            yield f"{group.__name__}: {summary(group)}\n\n" + "\n".join(texts)


def _setting_texts(
    config_class: Any, names: Collection[str], with_groups: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the settings of a class, with or without those of its groups, each with its lines of help."""
    text_by_name = meanings(config_class)
    config = config_class()
    for spec in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(spec.type):
            if with_groups:
                yield from _setting_texts(spec.type, names)
        elif spec.name in names:
            default = getattr(config, spec.name)
            head = f"  --{spec.name} {type_text(spec.type, FLAG_WORDS)}"
            if default is not None and default != ():
                head += f"  (default: {as_text(default)})"
            text = textwrap.indent(textwrap.fill(text_by_name[spec.name], _WIDTH - 6), " " * 6)
            yield spec.name, f"{head}\n{text}\n"


def groups_of(config_class: Any) -> dict[str, Any]:
    """Return the fields of a command that are groups of settings, each with the class of its group."""
    return {
        spec.name: spec.type
        for spec in dataclasses.fields(config_class)
        if dataclasses.is_dataclass(spec.type)
    }


def meanings(settings: Any) -> dict[str, str]:
    """Return what the text under each field of a class says, on one line each."""
    # Python keeps no docstrings of fields: they are read from
    # the source, where each is the statement after its field.
    (definition,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(definition, ast.ClassDef)
    text_by_name = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
        ):
            text_by_name[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return text_by_name


class TypeWords(NamedTuple):
    """How the type of a setting is written, in one of the places where it is."""

    basic: dict[Any, str]  # of types without parts
    alternatives: str  # between types of which a value has one
    choices: str  # with the names in it
    separator: str  # between the names


FLAG_WORDS = TypeWords(
    basic={str: "TEXT", int: "INTEGER", float: "NUMBER", bool: "[True|False]", dict: "JSON"},
    alternatives="|",
    choices="{{{}}}",
    separator=",",
)
"""After a flag in `--help`, which says in the default whether a setting may be None."""
SENTENCE_WORDS = TypeWords(
    basic={
        str: "text",
        int: "an integer",
        float: "a number",
        bool: "True or False",
        dict: "a mapping",
        types.NoneType: "None",
    },
    alternatives=" or ",
    choices="one of {}",
    separator=", ",
)
"""In messages and in docs/configuration.md."""


def type_text(annotation: Any, words: TypeWords) -> str:
    """Return the type of a setting as words; several values are written as `...`.

    Args:
        annotation: of its field.
        words: for the place where it is written.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return words.choices.format(words.separator.join(arguments))
    if origin is dict:
        return words.basic[dict]
    if origin in (Union, types.UnionType):
        named = [kind for kind in arguments if get_origin(kind) or kind in words.basic]
        return words.alternatives.join(type_text(kind, words) for kind in named)
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
