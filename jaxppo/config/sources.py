"""Where a configuration comes from, and how it is kept: defaults <- preset <- YAML file <- command line.

Every field name is unique over all groups, so a flag (`--kl_coef 0.1`) and a YAML key (`kl_coef: 0.1`) are the same
flat name.
"""

import contextlib
import dataclasses
import io
import itertools
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import tyro
import yaml

from jaxppo.config.checks import JsonMapping, has_flag, require
from jaxppo.config.data import USUAL_PARTS
from jaxppo.config.gone import GONE, renewed
from jaxppo.config.help import TypeWords, show_help, type_text
from jaxppo.config.paths import write_atomically
from jaxppo.config.reading import parse_yaml
from jaxppo.config.redact import REDACTED, redact
from jaxppo.errors import ConfigError, did_you_mean, shown

Config = TypeVar("Config")

PLACES = (
    "parallel",
    "mesh",
    "attention",
    "distributed",
    "coordinator_address",
)
"""Settings that say on which devices a run is carried out; its numbers do not depend on them."""

_DATA_PRESETS = "data/"

CALL_ONLY = ("output_dir", "preset", "config", "resume", "dry_run", "quiet", "profile", "peak_tflops", "report_to")
CALL_ONLY += ("target", "allow_changes", "push_to_hub", "hub_model_id", "hub_private", *PLACES)
"""Settings of one call, which are not saved with a run and may change on resume."""

ALIASES = {
    "data": "dataset",
    "splits": "eval_splits",
    "beta": "kl_coef",
    "epsilon": "cliprange",
    "epsilon_high": "cliprange_high",
    "num_iterations": "num_ppo_epochs",
    "hub_private_repo": "hub_private",
    "max_completion_length": "response_length",
}
"""Other names of flags and YAML keys, for configurations that have the setting and none of that name."""

MEANT = {
    "per_device_train_batch_size": "batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "generation_batch_size": "batch_size",
    "mini_batch_size": "num_mini_batches",
    "steps_per_generation": "num_mini_batches",
    "max_steps": "total_episodes",
    "ppo_epochs": "num_ppo_epochs",
    "init_kl_coef": "kl_coef",
    "kl_penalty": "kl_estimator",
    "reward_model": "reward_model_path",
    "model_name": "sft_model_path",
    "model_name_or_path": "sft_model_path",
    "ref_model": "sft_model_path",
    "dataset_name": "dataset",
    "dataset_train_split": "train_split",
    "dataset_streaming": "streaming",
    "dataset_test_split": "eval_splits",
    "max_new_tokens": "response_length",
    "max_seq_length": "max_length",
    "resume_from_checkpoint": "resume",
    "warmup_ratio": "warmup_steps",
    "bf16": "dtype",
    "fp16": "dtype",
    "disable_tqdm": "quiet",
    "lora_rank": "lora_r",
    "lora_dropout": None,
    "logging_steps": None,
    "num_completions_to_print": None,
    "deepspeed": "parallel",
    "fsdp": "parallel",
}
"""Names of TRL and transformers to the setting to look at, which means something else in part; None: there is none."""

_ALSO = {"sft_model_path": "model_path"}
"""What a command has in place of a setting that it lacks."""

_ERROR_WORDS = TypeWords(
    basic={str: "text", int: "an integer", float: "a number", bool: "True or False", dict: "a mapping"},
    alternatives=" or ",
    choices=lambda names: f"one of {', '.join(names)}",
    none="None",
)

CONFIG_FILE = "config.yaml"
"""Name of the resolved configuration in a run folder."""


def flatten(config: Any) -> dict[str, Any]:
    """Return every field of a configuration and its groups as one flat {name: value}, in declaration order."""
    flat: dict[str, Any] = {}
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {spec.name: value})
    return flat


def fields_of(config_class: Any) -> dict[str, dataclasses.Field]:
    """Return every field of a class of configurations and its groups by its name, in the order of `flatten`."""
    fields: dict[str, dataclasses.Field] = {}
    for spec in dataclasses.fields(config_class):
        fields.update(fields_of(spec.type) if dataclasses.is_dataclass(spec.type) else {spec.name: spec})
    return fields


def setting_names(config_class: Any) -> list[str]:
    """List the flags of a command, which are the keys of its YAML files, too.

    The other fields are arguments in Python: those of `python_only`, and those of shared groups that the command does
    not read (`UNREAD`).
    """
    unread = getattr(config_class, "UNREAD", ())
    return [name for name, spec in fields_of(config_class).items() if has_flag(spec) and name not in unread]


def replace(config: Config, /, **changes: Any) -> Config:
    """Return a copy of `config` with flat-named fields changed, in whichever group they live.

    Raises:
        ConfigError: a name that no group has, or a value that a group rejects.
    """
    fields = fields_of(type(config))
    for name in sorted(changes.keys() - fields.keys()):
        raise ConfigError(f"{shown(name)}: expected the name of a setting, got {name!r}{_hint(name, fields)}")
    types = {name: fields[name].type for name in changes}
    return _rebuilt(config, _parsed(types, {}, changes, [], "replace"))


def _rebuilt(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration, or of a group, with fields changed."""
    kwargs = {}
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        kwargs[spec.name] = (
            _rebuilt(value, changes) if dataclasses.is_dataclass(value) else changes.get(spec.name, value)
        )
    return type(config)(**kwargs)


def _parsed(
    types: Mapping[str, Any], defaults: Mapping[str, Any], values: Mapping[str, Any], flags: list[str], prog: str
) -> dict[str, Any]:
    """Read values of files and flags, in one go, as the types of their settings.

    Args:
        types: of the settings that may be given.
        defaults: of those that need not be given.
        values: as a YAML file or Python has them.
        flags: a command line, which goes over the values.
        prog: the command, for messages.

    Raises:
        ConfigError: a value or flag that does not fit; the message names it.
    """
    # A mapping is checked by the configuration itself, whatever it is.
    mappings = {n: v for n, v in values.items() if types[n] == JsonMapping and not isinstance(v, str)}
    words = {name: _as_words(name, v, types[name]) for name, v in values.items() if name not in mappings}
    settings = _class_of(types, {**defaults, **mappings})
    try:
        read = _with_tyro(settings, [word for each in words.values() for word in each] + flags, prog)
    except _BadFlag:
        for name, own in words.items():  # tyro does not say where a word is from
            _check_alone(name, types[name], values[name], own)
        raise
    return {name: getattr(read, name) for name in types}


def _class_of(types: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Return a flat dataclass of settings, for tyro."""
    specs: list[Any] = []
    for name, annotation in types.items():
        if name in defaults or annotation is bool:  # a switch without a default would be no switch
            default = dataclasses.field(default_factory=partial(defaults.get, name, False))
            specs.append((name, annotation, default))
        else:
            specs.append((name, annotation))
    return dataclasses.make_dataclass("Settings", specs, kw_only=True)


class _BadFlag(ConfigError):
    """What tyro says of a command line."""


def _with_tyro(config_class: Any, words: list[str], prog: str, default: Any = tyro.MISSING_NONPROP) -> Any:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(config_class, args=words, default=default, prog=prog, use_underscores=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise _BadFlag(_one_line(messages.getvalue())) from None


def _check_alone(name: str, annotation: Any, value: Any, words: list[str]) -> None:
    """Raise a `ConfigError` that names a setting unless its own words can be read."""
    try:
        _with_tyro(_class_of({name: annotation}, {}), words, name)
    except _BadFlag:
        raise ConfigError(f"{name}: expected {type_text(annotation, _ERROR_WORDS)}, got {value!r}") from None


def _as_words(name: str, value: Any, annotation: Any) -> list[str]:
    """Return the flag that says a value of a file; raise a `ConfigError` for one that no flag can say."""
    if bool in (annotation, *get_args(annotation)) and str(value).lower() in _SWITCH_WORDS:
        value = _SWITCH_WORDS[str(value).lower()]
    try:
        _check_kind(value, annotation)
    except TypeError:
        raise ConfigError(f"{name}: expected {type_text(annotation, _ERROR_WORDS)}, got {value!r}") from None
    if annotation is bool and isinstance(value, bool):
        return [f"--{name}" if value else f"--no_{name}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={value}"]


def _hint(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the setting that is meant, by TRL's words or by letters."""
    if name not in MEANT:
        return did_you_mean(name, known)
    ours = MEANT[name]
    ours = ours if ours in known else _ALSO.get(str(ours))
    if ours not in known:
        return ", which has no setting here (docs/from_trl.md)"
    return f", did you mean {ours!r}? It is not the same to the letter (docs/from_trl.md)"


def _plain_numbers(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Match the same numbers, but none with a colon."""
    return re.compile(f"(?!.*:)(?:{pattern.pattern})", re.VERBOSE)


def _check_kind(value: Any, annotation: Any) -> None:
    """Refuse what would look like text to the command line's parser: an empty value, a mapping, a list."""
    is_list = isinstance(value, list | tuple)
    if value is None and type(None) not in get_args(annotation):
        raise TypeError("no value")
    kinds = [annotation, *get_args(annotation)]
    if isinstance(value, dict) or (is_list and not any(get_origin(kind) is tuple for kind in kinds)):
        raise TypeError("a collection")


_BOOL, _TEXT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"
_SWITCH_WORDS = {"on": True, "yes": True, "off": False, "no": False}
"""What YAML 1.1 reads as True and False, and a setting with such words of its own as these."""


class _Loader(yaml.SafeLoader):
    """YAML without three traps.

    Of a key that comes twice the last would win, 4:16 would be 256 (sexagesimal), and `off` would be False where a flag
    says off. The value of a setting keeps such a word; inside of a mapping it is what YAML says.
    """

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        values = [value for _, value in root.value] if isinstance(root, yaml.MappingNode) else []
        entries = [entry for value in values if isinstance(value, yaml.SequenceNode) for entry in value.value]
        for node in (*values, *entries):
            if isinstance(node, yaml.ScalarNode) and node.tag == _BOOL and node.value.lower() in _SWITCH_WORDS:
                node.tag = _TEXT
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, list[str]] = {}
        for key, _ in node.value:
            lines.setdefault(str(key.value), []).append(str(key.start_mark.line + 1))
        for key, found in lines.items():
            if len(found) > 1:
                raise yaml.YAMLError(f"expected {key} once, got it in lines {', '.join(found)}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _plain_numbers(pattern) if tag.endswith((":int", ":float")) else pattern) for tag, pattern in resolvers
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a flat YAML mapping, maybe with the `preset` it lies over.

    Raises:
        ConfigError: the file is unreadable or nested; the message names it.
    """
    try:
        content = parse_yaml(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"config: expected a readable YAML file, got {path} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config: expected UTF-8 text in {path}, got {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"config: expected `flag: value` lines in {path}, got {type(content).__name__}")
    for name in content:
        if not isinstance(name, str) or name == "config":  # a file that names another one would hide it
            raise ConfigError(f"config: expected names of fields, without config, in {path}, got {name!r}")
    return {name: _with_home(value) for name, value in content.items()}


def _with_home(value: Any) -> Any:
    """Put the home folder in the place of the `~` that a path begins with, as shells do before they call a command."""
    if isinstance(value, list):
        return [_with_home(entry) for entry in value]
    is_path = isinstance(value, str) and (value == "~" or value.startswith("~/"))
    return os.path.expanduser(value) if is_path else value


def _args_with_home(args: Sequence[str]) -> list[str]:
    """Do the same for arguments, of which a shell leaves `--flag=~/folder` and what is quoted."""
    split = (arg.partition("=") if arg.startswith("--") else ("", "", arg) for arg in args)
    return [flag + equals + _with_home(value) for flag, equals, value in split]


def write_yaml(config: Any, path: Path, command: str | None = None) -> None:
    """Write the resolved configuration as flat YAML: all that decides the result, so that `--config` repeats it.

    Args:
        config: what to write; secrets in it are replaced by `<redacted>`.
        path: the file.
        command: the command line that led to it, kept as a comment at the top, without its secrets.
    """
    names, usual = setting_names(type(config)), flatten(type(config)())
    flat = {
        name: value
        for name, value in flatten(config).items()
        if name not in CALL_ONLY and (name in names or value != usual[name])
    }
    text = yaml.safe_dump(plain_values(flat), sort_keys=False)
    write_atomically(path, ("" if command is None else _comment(f"command: {command}")) + text)


def plain_values(flat: dict[str, Any]) -> dict[str, Any]:
    """Return a flat configuration as it is written: lists for tuples, and no secrets."""
    return redact({name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()})


def _comment(text: str) -> str:
    """Write a comment that no character of the text can end: more than newlines breaks a line of YAML."""
    lines = redact(text).splitlines()
    printable = ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines]
    return "".join(f"# {line}\n" for line in printable)


def preset_values(command: str, name: str) -> dict[str, Any]:
    """Read the flat values of a shipped preset, over those of the ones that it names as its own `preset`.

    These are of the same command, or `data/NAME`: a data set that presets of several commands share.

    Raises:
        ConfigError: no such preset; the message lists those there are.
    """
    folder = resources.files("jaxppo.config") / "presets" / command.replace(" ", "_")
    names = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in names:
        raise ConfigError(
            f"preset: expected one of {', '.join(names)} for {command}, got {name!r}{did_you_mean(str(name), names)}"
        )
    values = read_yaml(str(folder / f"{name}.yaml"))
    return _over_presets(command, values.pop("preset", None), values)


def parse_cli(config_class: type[Config], command: str, argv: list[str] | None = None) -> Config:
    """Read the configuration of a command from its arguments; `--help` and `--help_all` print and exit.

    Raises:
        ConfigError: unknown flag or key, or a bad value, named in one line.
    """
    args = _without_aliases(_args_with_home(sys.argv[1:] if argv is None else argv), config_class)
    show_help(config_class, command, setting_names(config_class), args)
    fields, defaults = fields_of(config_class), flatten(config_class())
    types = {name: fields[name].type for name in setting_names(config_class)}
    values = _file_values(config_class, command, args)
    args, parts = _without_parts(args, USUAL_PARTS.keys() & types.keys())
    values = _over(values, parts)
    try:
        parsed = _parsed(types, {name: defaults[name] for name in types}, values, args, f"python -m jaxppo.{command}")
    except _BadFlag as error:
        raise ConfigError(_with_fix(str(error), config_class)) from None
    for name, value in parsed.items():
        if REDACTED in str(value):
            fix = f"give --{name} again, as a run's config.yaml keeps no secrets"
            raise ConfigError(f"{name}: expected no {REDACTED} in it, got {value!r}; {fix}")
    return _rebuilt(config_class(), parsed)


def parse_flags(config_class: type[Config], command: str, argv: list[str] | None = None) -> Config:
    """Read the configuration of a command that has neither presets nor files; `--help` prints and exits.

    Raises:
        ConfigError: unknown or missing flag, or a bad value, named in one line.
    """
    args = _args_with_home(sys.argv[1:] if argv is None else argv)
    try:
        return _with_tyro(tyro.conf.OmitArgPrefixes[config_class], args, f"python -m jaxppo.{command}")  # type: ignore[valid-type]
    except _BadFlag as error:
        raise ConfigError(_with_fix(str(error), config_class)) from None


def _without_aliases(args: list[str], config_class: type) -> list[str]:
    aliases = {f"--{alias}": f"--{name}" for alias, name in _aliases(config_class).items()}
    split = (arg.partition("=") for arg in args)
    return _switched([aliases.get(flag, flag) + equals + value for flag, equals, value in split], config_class)


def _without_parts(args: list[str], names: Collection[str]) -> tuple[list[str], dict[str, Any]]:
    """Take the settings out of a command line of which a flag changes those parts that it names: {name: words}."""
    rest, parts, name = [], {}, None
    for arg in args:
        flag, equals, value = arg.partition("=")
        if arg.startswith("--"):
            name = flag[2:].replace("-", "_")
            if name in names:
                parts.setdefault(name, []).extend([value] if equals else [])
        elif name in names:
            parts[name].append(arg)
        if name not in names:
            rest.append(arg)
    return rest, parts


def _aliases(config_class: Any) -> dict[str, str]:
    """Return the other names that settings of a command have."""
    names = setting_names(config_class)
    return {alias: name for alias, name in ALIASES.items() if name in names and alias not in names}


def _switched(args: list[str], config_class: type) -> list[str]:
    """Write switches as tyro takes them: `--resume True` becomes `--resume`, `--resume False` becomes `--no_resume`."""
    switches = {f"--{name}" for name, spec in fields_of(config_class).items() if spec.type is bool}
    result: list[str] = []
    for arg in args:
        flag, equals, value = arg.partition("=")
        if not equals and result and arg.lower() in ("true", "false"):
            flag, value = result[-1], arg
        flag = flag.replace("-", "_").replace("__", "--", 1)
        if flag not in switches or value.lower() not in ("true", "false"):
            result.append(arg)
            continue
        if not equals:
            result.pop()
        result.append(flag if value.lower() == "true" else f"--no_{flag[2:]}")
    return result


def _file_values(config_class: Any, command: str, args: list[str]) -> dict[str, Any]:
    """Read what the flags go over: preset and YAML file, or with --resume alone the configuration of that run.

    The preset is that of the command line, else that of the file, else, without a file, `default`.
    """
    preset, config_file, output_dir = (_flag_value(args, name) for name in ("preset", "config", "output_dir"))
    if preset is None and config_file is None and output_dir is not None and "--resume" in args:
        saved = Path(output_dir) / CONFIG_FILE
        config_file = str(saved) if saved.exists() else None
    names = [*setting_names(config_class), *ALIASES]
    values = {"preset": "default"} if config_file is None else renewed(read_yaml(config_file), names)
    in_file = values.pop("preset", None)
    for alias, name in _aliases(config_class).items():
        if alias in values:
            require(
                name not in values, alias, f"this name or {name}, which are the same setting, not both", values[alias]
            )
            values[name] = values.pop(alias)
    values = _over_presets(command, preset or in_file, values)
    named = {name for name in ("num_train_epochs", "total_episodes") if _flag_value(args, name) is not None}
    return _known(_without_episodes(values, named), config_class, command)


def _known(values: dict[str, Any], config_class: Any, command: str) -> dict[str, Any]:
    """Return the values of a file without those of settings that are gone, where they change nothing.

    Raises:
        ConfigError: a name that the command does not have; the message says what replaced it.
    """
    names, fields = setting_names(config_class), fields_of(config_class)
    known = {}
    for name, value in values.items():
        if name in names:
            known[name] = value
        elif name in fields:
            default = flatten(config_class())[name]
            plain = list(default) if isinstance(default, tuple) else default
            require(value == plain, name, f"{plain} with {command}, which has no such flag", value)
        elif name in GONE:
            require(GONE[name].changes_nothing(value), shown(name), f"no such setting; {GONE[name].instead}", value)
        else:
            raise ConfigError(f"{shown(name)}: expected the name of a setting, got {name!r}{_hint(name, names)}")
    return known


def _over_presets(command: str, presets: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Lay values over a preset, or over several, of which the later ones go over the earlier."""
    if not isinstance(presets, list):
        presets = [] if presets is None else [presets]
    for name in reversed(presets):
        of_data = str(name).startswith(_DATA_PRESETS)
        lower = preset_values("data", name.removeprefix(_DATA_PRESETS)) if of_data else preset_values(command, name)
        values = _over(lower, values)
    return values


def _over(lower: dict[str, Any], higher: dict[str, Any]) -> dict[str, Any]:
    both = _without_episodes(lower, higher) | higher
    return both | {name: [*lower[name], *higher[name]] for name in USUAL_PARTS if lower.get(name) and higher.get(name)}


def _without_episodes(values: dict[str, Any], said_later: Collection[str]) -> dict[str, Any]:
    """Drop `total_episodes`, which would win over epochs, where a later source gives a number of epochs."""
    undone = "num_train_epochs" in said_later and "total_episodes" not in said_later
    return {name: value for name, value in values.items() if not (undone and name == "total_episodes")}


def _flag_value(args: list[str], name: str) -> str | None:
    """Return the last value given for a flag, spelled with underscores or hyphens, after a space or `=`."""
    value = None
    for i, arg in enumerate(args):
        flag, equals, rest = arg.partition("=")
        if flag.replace("-", "_") == f"__{name}":
            value = rest if equals else next(iter(args[i + 1 : i + 2]), None)
    return value


def _one_line(panel: str) -> str:
    """Return the first paragraph of tyro's error message as one line; its box is drawn with or without Unicode."""
    lines = [line.strip("│ ") for line in panel.splitlines()[1:]]
    below_title = itertools.dropwhile(_is_rule, lines)
    return " ".join(" ".join(itertools.takewhile(lambda line: not _is_rule(line), below_title)).split())


def _is_rule(line: str) -> bool:
    return not line.strip("─-╭╮╰╯")


def _with_fix(message: str, config_class: type) -> str:
    """Return tyro's message or, for an unknown flag, one that names the flag which may be meant."""
    start, _, words = message.partition("Unrecognized options: ")
    if start or not words:
        return f"{message} (--help_all explains every flag)"
    word = words.split(", ")[0].partition("=")[0]
    if not word.startswith("--"):
        return (
            f"{word}: expected a flag (--help_all lists them), got a word behind no flag or behind one that takes fewer"
        )
    name = word[2:].replace("-", "_").removeprefix("no_")
    names = setting_names(config_class)
    if name in fields_of(config_class) and name not in names:
        got = "one that this command does not read, or that is an argument in Python alone (docs/configuration.md)"
        return f"{word}: expected a flag of this command (--help_all lists them), got {got}"
    if name in GONE and name not in names:
        return f"{word}: expected a flag (--help_all lists them), got one that is gone; {GONE[name].instead}"
    hint = _hint(name, names) if name in MEANT else did_you_mean(f"--{name}", [f"--{known}" for known in names])
    return f"{word}: expected a flag of this command (--help_all lists them), got {word!r}{hint}"
