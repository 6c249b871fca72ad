"""Where a configuration comes from, and how it is saved: defaults <- preset <- YAML file <- command line.

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
import types
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
import yaml

from jaxppo.config.checks import has_flag, require
from jaxppo.config.data import DEFAULT_PARTS, as_list, merge_parts
from jaxppo.config.help import SENTENCE_WORDS, show_help, type_text
from jaxppo.config.old_settings import OLD_SETTINGS, translate_old_settings
from jaxppo.config.paths import write_atomically
from jaxppo.config.reading import parse_json, parse_yaml
from jaxppo.config.redact import REDACTED, redact
from jaxppo.errors import ConfigError, DataError, did_you_mean, shown

Config = TypeVar("Config")

PLACES = (
    "parallel",
    "mesh",
    "attention",
    "distributed",
)
"""Settings that say on which devices a run is carried out; its numbers do not depend on them."""

_DATA_PRESETS = "data/"

CALL_ONLY = (
    "output_dir",
    "preset",
    "config",
    "resume",
    "dry_run",
    "quiet",
    "profile",
    "report_to",
)
CALL_ONLY += ("target", "allow_changes", "push_to_hub", "hub_model_id", "hub_private", *PLACES)
"""Settings of one call, which are not saved with a run and may change on resume."""

ALIASES = {
    "data": "dataset",
    "splits": "eval_splits",
    "model_path": "model",
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
    "num_train_epochs": "total_episodes",
    "ppo_epochs": "num_ppo_epochs",
    "init_kl_coef": "kl_coef",
    "kl_penalty": "kl_estimator",
    "reward_model": "reward_model_path",
    "model_name": "sft_model_path",
    "model_name_or_path": "sft_model_path",
    "ref_model": "sft_model_path",
    "dataset_name": "dataset",
    "dataset_train_split": "train_split",
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

CONFIG_FILE = "config.yaml"
"""Name of the resolved configuration in a run folder."""


def flatten(config: Any) -> dict[str, Any]:
    """Return every field of a configuration and its groups as one flat {name: value}, in declaration order.

    Settings of KEY=VALUE words have every part, also those left to the defaults.
    """
    flat: dict[str, Any] = {}
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value))
        elif spec.name in DEFAULT_PARTS:
            # Saved and compared in full: a run of today must not
            # change its problems when a later version has other defaults.
            flat[spec.name] = merge_parts(spec.name, value)
        else:
            flat[spec.name] = value
    return flat


def fields_of(config_class: Any) -> dict[str, dataclasses.Field]:
    """Return every field of a class of configurations and its groups by its name, in the order of `flatten`."""
    fields: dict[str, dataclasses.Field] = {}
    for spec in dataclasses.fields(config_class):
        fields.update(
            fields_of(spec.type) if dataclasses.is_dataclass(spec.type) else {spec.name: spec}
        )
    return fields


def setting_names(config_class: Any) -> list[str]:
    """List the settings of a command: the keys of its YAML files, also those of `without_flag`.

    The other fields are those of shared groups that the command does not read (`UNREAD`).
    """
    unread = getattr(config_class, "UNREAD", ())
    return [name for name in fields_of(config_class) if name not in unread]


def flag_names(config_class: Any) -> list[str]:
    """List the settings of a command that have a flag."""
    fields = fields_of(config_class)
    return [name for name in setting_names(config_class) if has_flag(fields[name])]


def replace(config: Config, /, **changes: Any) -> Config:
    """Return a copy of `config` with flat-named fields changed, in whichever group they live.

    Raises:
        ConfigError: a name that no group has, or a value that a group rejects.
    """
    fields = fields_of(type(config))
    _refuse_all(
        [
            f"{shown(name)}: expected the name of a setting, got {name!r}{_hint(name, fields)}"
            for name in sorted(changes.keys() - fields.keys())
        ]
    )
    parsed = {name: _parse(name, fields[name].type, value) for name, value in changes.items()}
    return _rebuild(config, parsed)


def _rebuild(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration, or of a group, with fields changed."""
    kwargs = {}
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        if dataclasses.is_dataclass(value):
            kwargs[spec.name] = _rebuild(value, changes)
        else:
            kwargs[spec.name] = changes.get(spec.name, value)
    return type(config)(**kwargs)


def _parse(name: str, annotation: Any, value: Any) -> Any:
    """Return a value of a file, of the command line or of Python as the type of its setting.

    Raises:
        ConfigError: it does not fit; the message begins with `name`.
    """
    try:
        return _convert(annotation, value)
    except ValueError:
        raise ConfigError(
            f"{name}: expected {type_text(annotation, SENTENCE_WORDS)}, got {value!r}"
        ) from None


def _convert(annotation: Any, value: Any) -> Any:
    """Return a value as a type; a `ValueError` where it is none of it."""
    origin = get_origin(annotation)
    kinds = get_args(annotation)
    if origin in (Union, types.UnionType):
        if types.NoneType in kinds and value in (None, "None"):
            return None
        for kind in kinds:
            with contextlib.suppress(ValueError):
                return _convert(kind, value)
        raise ValueError
    if origin is tuple:
        values = as_list(value)
        if kinds[-1] is ...:
            kinds = kinds[:1] * len(values)
        return tuple(_convert(kind, entry) for kind, entry in zip(kinds, values, strict=True))
    if origin is dict:
        # What is no mapping goes on as it is: the configuration says what it expects.
        with contextlib.suppress(DataError):
            return parse_json(value) if isinstance(value, str) else value
        return value
    # Written as text, these would come back as a text.
    if annotation is types.NoneType or value is None or isinstance(value, list | tuple | dict):
        raise ValueError
    text = str(value)
    if origin is Literal:
        return kinds[kinds.index(text)]
    if annotation is bool:
        if text.lower() not in _SWITCH_WORDS:
            raise ValueError
        return _SWITCH_WORDS[text.lower()]
    return annotation(text)


def _hint(name: str, names: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the setting that is meant, by TRL's words or by letters."""
    if name not in MEANT:
        return did_you_mean(name, names)
    setting = MEANT[name]
    if setting not in names:
        setting = _ALSO.get(str(setting))
    if setting not in names:
        return ", which has no setting here (docs/from_trl.md)"
    return f", did you mean {setting!r}? It is not the same to the letter (docs/from_trl.md)"


_BOOL = "tag:yaml.org,2002:bool"
_TEXT = "tag:yaml.org,2002:str"
_SWITCH_WORDS = {
    "true": True,
    "on": True,
    "yes": True,
    "false": False,
    "off": False,
    "no": False,
}
"""YAML 1.1 reads these as True and False; but for the two themselves a setting may have them as words of its own."""


class _Loader(yaml.SafeLoader):
    """YAML without three traps.

    Of a key that comes twice the last would win, 4:16 would be 256 (sexagesimal), and `off` would be False where a flag
    says off. The value of a setting keeps such a word; inside of a mapping it is what YAML says.
    """

    def get_single_node(self) -> yaml.Node | None:
        root = super().get_single_node()
        if not isinstance(root, yaml.MappingNode):
            return root
        for _, value in root.value:
            entries = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for node in entries:
                if (
                    isinstance(node, yaml.ScalarNode)
                    and node.tag == _BOOL
                    and node.value.lower() not in ("true", "false")
                ):
                    node.tag = _TEXT
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines_by_key: dict[str, list[str]] = {}
        for key, _ in node.value:
            lines_by_key.setdefault(str(key.value), []).append(str(key.start_mark.line + 1))
        for key, lines in lines_by_key.items():
            if len(lines) > 1:
                raise yaml.YAMLError(f"expected {key} once, got it in lines {', '.join(lines)}")
        return super().construct_mapping(node, deep)


def _resolvers_without_sexagesimals() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return YAML's patterns of scalars by first character, where those of numbers match none with a colon."""
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for first_character, patterns in yaml.SafeLoader.yaml_implicit_resolvers.items():
        resolvers[first_character] = []
        for tag, pattern in patterns:
            if tag.endswith((":int", ":float")):
                pattern = re.compile(f"(?!.*:)(?:{pattern.pattern})", re.VERBOSE)
            resolvers[first_character].append((tag, pattern))
    return resolvers


_Loader.yaml_implicit_resolvers = _resolvers_without_sexagesimals()


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a flat YAML mapping, maybe with the `preset` it lies over.

    Raises:
        ConfigError: the file is unreadable or nested; the message names it.
    """
    try:
        content = parse_yaml(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"config: expected a readable YAML file, got {path} ({error.strerror})"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config: expected UTF-8 text in {path}, got {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        # What YAML makes of a file that is empty, or has comments alone.
        found = "none" if content is None else type(content).__name__
        raise ConfigError(f"config: expected `flag: value` lines in {path}, got {found}")
    for name in content:
        # A file that names another one would hide it
        if not isinstance(name, str) or name == "config":
            raise ConfigError(
                f"config: expected names of fields, without config, in {path}, got {name!r}"
            )
    return {name: _with_home(value) for name, value in content.items()}


_HOME = re.compile(r"(?P<flag>--[\w-]+=)?~(?=/|\Z)")


def _with_home(value: Any) -> Any:
    """Put the home folder in the place of the `~` that a path begins with, as shells do before they call a command.

    A shell leaves `--flag=~/folder` and what is quoted as it is.
    """
    if isinstance(value, list):
        return [_with_home(entry) for entry in value]
    match = _HOME.match(value) if isinstance(value, str) else None
    if match is None:
        return value
    return (match["flag"] or "") + os.path.expanduser("~") + value[match.end() :]


_STARTED_IN = "started in: "
"""Begins the comment at the end of a run's configuration."""

_LOCAL = ("dataset", "reward_funcs", "model", "compare_with", "plans", "pddl_dir")
"""Settings that may name files of the machine, beside those that end in `_path`."""


def write_yaml(
    config: Any, path: Path, command: str | None = None, folder: Path | None = None
) -> None:
    """Write the resolved configuration as flat YAML: all that decides the result, so that `--config` repeats it.

    Args:
        config: what to write; secrets in it are replaced by `<redacted>`.
        path: the file.
        command: the command line that led to it, kept as a comment at the top, without its secrets.
        folder: where the command was started, kept as a comment at the end: relative paths are relative to it.
    """
    names = flag_names(type(config))
    defaults = flatten(type(config)())
    flat = {}
    for name, value in flatten(config).items():
        # What has no flag is written where it differs, so that the file stays one that can be read.
        if name not in CALL_ONLY and (name in names or value != defaults[name]):
            flat[name] = value
    head = "" if command is None else _yaml_comment(f"command: {command}")
    foot = "" if folder is None else _yaml_comment(f"{_STARTED_IN}{folder}")
    write_atomically(path, head + yaml.safe_dump(plain_values(flat), sort_keys=False) + foot)


def plain_values(flat: dict[str, Any]) -> dict[str, Any]:
    """Return a flat configuration as it is written: lists for tuples, and no secrets."""
    return redact(
        {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}
    )


def _yaml_comment(text: str) -> str:
    """Write a comment that no character of the text can end: more than newlines breaks a line of YAML."""
    comment = ""
    for line in redact(text).splitlines():
        printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        comment += f"# {printable}\n"
    return comment


def preset_values(command: str, name: str) -> dict[str, Any]:
    """Read the flat values of a shipped preset, over those of the ones that it names as its own `preset`.

    These are of the same command, or `data/NAME`: a data set that presets of several commands share.

    Raises:
        ConfigError: no such preset; the message lists those there are.
    """
    folder = resources.files("jaxppo.config") / "presets" / command.replace(" ", "_")
    names = sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )
    if name not in names:
        raise ConfigError(
            f"preset: expected one of {', '.join(names)} for {command}, got {name!r}{did_you_mean(str(name), names)}"
        )
    values = read_yaml(str(folder / f"{name}.yaml"))
    return _over_presets(command, values.pop("preset", None), values)


# How a value finds its way, for `train --preset tiny --config my.yaml --beta 0.1 --resume False`:
# 1. The command line becomes what a file with the same settings would be: {setting: value} (`_read_flags`).
# 2. All that lies below it becomes such a dictionary, too: `tiny`, the presets it names itself, and my.yaml over them
#    (`_file_values`).
# 3. Two rules go beyond "the last one counts", wherever one source is laid over another (`_merge`): a number of epochs
#    drops the total_episodes of a lower source, and settings of KEY=VALUE words are changed key by key.
# 4. Each value is read as the type of its field (`_parse`), and goes into its group (`_rebuild`), which checks itself.
def parse_cli(config_class: type[Config], command: str, argv: list[str] | None = None) -> Config:
    """Read the configuration of a command from its arguments; `--help` and `--help_all` print and exit.

    Raises:
        ConfigError: unknown flag or key, or a bad value, named in one line.
    """
    args = sys.argv[1:] if argv is None else argv
    show_help(config_class, command, flag_names(config_class), args)
    flags = _read_flags(_with_home(list(args)), config_class)
    values = _merge(_file_values(config_class, command, flags), flags)
    if values.get("resume") and values.get("output_dir") is not None:
        values["output_dir"] = _enter_start_folder(str(values["output_dir"]), values)
    for name, value in values.items():
        if REDACTED in str(value):
            fix = f"give --{name} again, as a run's config.yaml keeps no secrets"
            raise ConfigError(f"{name}: expected no {REDACTED} in it, got {value!r}; {fix}")
    return replace(config_class(), **values)


def _enter_start_folder(output_dir: str, values: Mapping[str, Any]) -> str:
    """Go to the folder in which the run to resume was started, where its files are there and not here.

    Its settings stay as they were given, so that they compare equal and no page or card shows more of the machine.

    Args:
        output_dir: the run.
        values: its settings; paths, and modules of reward functions, may be relative.

    Returns:
        The run, as it is named from the folder that the command goes on in.
    """
    saved = Path(output_dir) / CONFIG_FILE
    if not saved.is_file():
        return output_dir
    last_line = saved.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    start = last_line.removeprefix(f"# {_STARTED_IN}")
    if start == last_line or start == os.getcwd():
        return output_dir
    if not os.path.isdir(start):
        print(
            f"output_dir: {output_dir} was started in {start}, which is no folder here: relative paths are looked for "
            f"in {os.getcwd()}",
            file=sys.stderr,
        )
        return output_dir
    for name, value in values.items():
        for word in as_list(value) if name in _LOCAL or name.endswith("_path") else ():
            if _has_file(start, str(word)) and not _has_file(os.curdir, str(word)):
                output_dir = os.path.abspath(output_dir)
                print(
                    f"output_dir: {output_dir} goes on in {start}, where it was started: {name} {word} is there",
                    file=sys.stderr,
                )
                os.chdir(start)
                return output_dir
    return output_dir


def _has_file(folder: str, word: str) -> bool:
    """Return whether a word is the path of a file in a folder, or module:function of a module in it."""
    module, colon, _ = word.partition(":")
    paths = [word]
    if colon:
        path = module.replace(".", "/")
        paths += [path, f"{path}.py"]
    return any(path and os.path.exists(os.path.join(folder, path)) for path in paths)


def parse_flags(config_class: type[Config], command: str, argv: list[str] | None = None) -> Config:
    """Read the configuration of a command that has neither presets nor files; `--help` prints and exits.

    Raises:
        ConfigError: unknown or missing flag, or a bad value, named in one line.
    """
    args = _with_home(list(sys.argv[1:] if argv is None else argv))
    flags = itertools.takewhile(lambda arg: arg != "--", args)  # all after it are words
    _check_flags([arg for arg in flags if arg not in ("-h", "--help")], config_class)
    flat_class: Any = tyro.conf.OmitArgPrefixes[config_class]
    prog = f"python -m jaxppo.{command}"
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(flat_class, args=args, prog=prog, use_underscores=True)
    except SystemExit as stop:
        if not stop.code:  # after --help
            raise
        message = _first_paragraph(messages.getvalue())
        raise ConfigError(f"{message} (--help explains every flag)") from None


_FLAG = re.compile(r"--|-[a-zA-Z]")
"""What a flag begins with: `-1` is a value, and one that begins like a flag is given as `--flag=-value`."""


def _check_flags(args: list[str], config_class: Any) -> None:
    """Raise a `ConfigError` that names every flag which the command does not have."""
    messages = []
    for arg in args:
        if _FLAG.match(arg):
            try:
                _setting_of(arg.partition("=")[0], config_class)
            except ConfigError as error:
                messages.append(str(error))
    _refuse_all(messages)


def _refuse_all(messages: list[str]) -> None:
    """Raise one `ConfigError` for all of the messages, if there are any: whoever mends one would only meet the next."""
    if messages:
        raise ConfigError("; ".join(dict.fromkeys(messages)))


def _read_flags(args: list[str], config_class: Any) -> dict[str, Any]:
    """Read a command line as a file with these settings would be read: {setting: value}.

    Of a flag that comes twice the last counts; of one of KEY=VALUE words all words stay.
    """
    _check_flags(args, config_class)
    words_by_name: dict[str, list[str]] = {}
    word_by_name: dict[str, str] = {}
    words = None
    for arg in args:
        if not _FLAG.match(arg):
            if words is None:
                raise ConfigError(
                    f"{shown(arg)}: expected a flag (--help_all lists them), got a word after no flag"
                )
            words.append(arg)
            continue
        flag, equals, value = arg.partition("=")
        name = _setting_of(flag, config_class)
        word = _as_name(flag)
        is_off = word == f"no_{name}"
        other = word_by_name.setdefault(name, name if is_off else word)
        if not is_off and other != word:
            raise ConfigError(
                f"{name}: expected one of --{other} and --{word}, which mean the same, got both"
            )
        if name not in DEFAULT_PARTS:
            words_by_name[name] = []
        words = words_by_name.setdefault(name, [])
        # `--no_x=True` has both words, so that it is refused.
        if is_off:
            words.append("False")
        if equals:
            words.append(value)
    fields = fields_of(config_class)
    values = {}
    for name, words in words_by_name.items():
        annotation = fields[name].type
        # As YAML has them: a single word is no list, and a switch by itself is on.
        value = words[0] if len(words) == 1 else words
        if not words and annotation is bool:
            value = True
        values[name] = _parse(f"--{name}", annotation, value)
    return values


def _aliases(config_class: Any) -> dict[str, str]:
    """Return the other names that settings of a command have."""
    names = setting_names(config_class)
    return {alias: name for alias, name in ALIASES.items() if name in names and alias not in names}


def _file_values(config_class: Any, command: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the flags go over: preset and YAML file, or with --resume alone the configuration of that run.

    The preset is that of the command line, else that of the file, else, without a file, `default`.
    """
    preset = flags.get("preset")
    config_file = flags.get("config")
    output_dir = flags.get("output_dir")
    if preset is None and config_file is None and output_dir is not None and flags.get("resume"):
        saved = Path(output_dir) / CONFIG_FILE
        config_file = saved if saved.exists() else None
    if config_file is None:
        values = {"preset": "default"}
    else:
        values = translate_old_settings(
            read_yaml(config_file), [*setting_names(config_class), *ALIASES]
        )
    preset_in_file = values.pop("preset", None)
    for alias, name in _aliases(config_class).items():
        if alias in values:
            requirement = f"this name or {name}, which are the same setting, not both"
            require(name not in values, alias, requirement, values[alias])
            values[name] = values.pop(alias)
    values = _over_presets(command, preset or preset_in_file, values)
    return _check_names(values, config_class, command)


def _check_names(values: dict[str, Any], config_class: Any, command: str) -> dict[str, Any]:
    """Return the values of a file for which the command has flags; the others must be what they are without the file.

    Raises:
        ConfigError: a name that the command does not have; the message says what replaced it.
    """
    names = setting_names(config_class)
    defaults = flatten(config_class())
    settings = {}
    messages = []
    for name, value in values.items():
        requirement = None
        if name in names:
            settings[name] = value
        elif name in defaults:
            # A preset may serve several commands.
            default = defaults[name]
            plain = list(default) if isinstance(default, tuple) else default
            if value != plain:
                requirement = f"{plain} with {command}, which does not read it"
        elif name in OLD_SETTINGS and OLD_SETTINGS[name].is_gone_from(config_class):
            old = OLD_SETTINGS[name]
            if not old.is_neutral(value):
                requirement = f"no such setting; {old.advice}"
        else:
            messages.append(
                f"{shown(name)}: expected the name of a setting, got {name!r}{_hint(name, names)}"
            )
        if requirement is not None:
            messages.append(f"{shown(name)}: expected {requirement}, got {value!r}")
    _refuse_all(messages)
    return settings


def _over_presets(command: str, presets: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Lay values over a preset, or over several, of which the later ones go over the earlier."""
    if not isinstance(presets, list):
        presets = [] if presets is None else [presets]
    for name in reversed(presets):
        if str(name).startswith(_DATA_PRESETS):
            lower = preset_values("data", name.removeprefix(_DATA_PRESETS))
        else:
            lower = preset_values(command, name)
        values = _merge(lower, values)
    return values


def _merge(lower: dict[str, Any], higher: dict[str, Any]) -> dict[str, Any]:
    """Lay the values of one source over those of another."""
    merged = _without_episodes(lower, higher) | higher
    for name in DEFAULT_PARTS:
        # Both lists of KEY=VALUE stay, the higher one last: of a key that comes twice,
        # `merge_parts` takes the last.
        if lower.get(name) and higher.get(name):
            merged[name] = [*as_list(lower[name]), *as_list(higher[name])]
    return merged


def _without_episodes(values: dict[str, Any], higher_names: Collection[str]) -> dict[str, Any]:
    """Drop `total_episodes`, which would win over epochs, where a higher source gives a number of epochs."""
    if "num_train_epochs" not in higher_names or "total_episodes" in higher_names:
        return values
    return {name: value for name, value in values.items() if name != "total_episodes"}


def _first_paragraph(panel: str) -> str:
    """Return the first paragraph of tyro's error message as one line; its box is drawn with or without Unicode."""
    paragraph = []
    for line in panel.splitlines()[1:]:
        text = line.strip("│ ")
        if text.strip("─-╭╮╰╯"):
            paragraph.append(text)
        elif paragraph:
            # A rule, or an empty line: the usage that follows says nothing of the mistake.
            break
    return " ".join(" ".join(paragraph).split())


def _as_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _is_positional(spec: dataclasses.Field) -> bool:
    return tyro.conf.Positional in getattr(spec.type, "__metadata__", ())


def _setting_of(flag: str, config_class: Any) -> str:
    """Return the setting that a flag says, without its value.

    Raises:
        ConfigError: the command has no such flag; the message names the one which may be meant.
    """
    fields = fields_of(config_class)
    names = flag_names(config_class)
    word = _as_name(flag)
    name = _aliases(config_class).get(word, word)
    switch = word.removeprefix("no_")
    if name not in names and switch in names and fields[switch].type is bool:
        name = switch
    if name in names and not _is_positional(fields[name]):
        return name
    name = name.removeprefix("no_")
    start = f"{shown(flag)}: expected a flag of this command (--help_all lists them), got"
    if name in setting_names(config_class) and name not in names:
        raise ConfigError(f"{start} a setting without one: a file has it, {name}: VALUE (--config)")
    if name in fields and name not in names:
        raise ConfigError(f"{start} one that this command does not read (docs/configuration.md)")
    old = OLD_SETTINGS.get(name)
    if old is not None and name not in names and old.is_gone_from(config_class):
        raise ConfigError(f"{start} one that is gone; {old.advice}")
    if name in MEANT:
        hint = _hint(name, names)
    else:
        positional = [setting for setting in names if _is_positional(fields[setting])]
        flags = [f"--{setting}" for setting in names if setting not in positional]
        hint = did_you_mean(f"--{name}", flags)
        if positional:
            hint += f"; {' and '.join(positional)} are given without a flag"
    raise ConfigError(f"{start} {flag!r}{hint}")
