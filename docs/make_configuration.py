"""Makes docs/configuration.md of the settings themselves: `python docs/make_configuration.py`."""

import dataclasses
import re
import sys
from collections.abc import Collection, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jaxppo import config  # noqa: E402
from jaxppo.config.checks import has_flag  # noqa: E402
from jaxppo.config.help import (  # noqa: E402
    SENTENCE_WORDS,
    as_text,
    groups_of,
    meanings,
    summary,
    type_text,
)
from jaxppo.config.sources import flag_names  # noqa: E402
from jaxppo.planning.datasets import config as planning  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"

COMMANDS: dict[str, type] = {
    "train": config.TrainConfig,
    "self_train": config.SelfTrainConfig,
    "sft": config.SFTConfig,
    "reward_model": config.RewardModelConfig,
    "evaluate": config.EvaluateConfig,
    "export": config.ExportConfig,
    "reward_server": config.RewardServerConfig,
    "planning build": planning.BuildConfig,
    "planning import": planning.ImportConfig,
}
"""Every command with settings, in the order of the page."""

_INTRODUCTION = """\
# Configuration

Every setting of every command, with its type, its default and what it means. `--help_all` of a
command says the same of its flags in the terminal, `--help` what one begins with.

A setting is a flag and, under the same name, a line of a YAML file; some that are rarely changed have no flag. What is
said last counts:

1. the default of the table;
2. the preset: `--preset NAME`, or the preset `default` where neither a preset nor a file is named;
3. the file: `--config FILE.yaml`, which may name its presets itself: `preset: [default, data/planning-multi]`;
4. the flags.

```bash
python -m jaxppo.train --preset tiny --kl_coef 0.1 --eval_splits test
```

- A switch is `--resume` or `--resume True`, and `--resume False`; several values stand one after the other;
  `None` takes a value away.
- `~/` at the beginning of a value is the home folder. Where a setting has other names (alias), files have them, too.
- An unknown name or a value that does not fit is one line that names it, before anything is computed.
- `config.yaml` of a run folder holds the settings of the run (those without a flag where they are not the default), and
  `--config` takes it again.
- Where a run takes place (`--mesh`, `--distributed` and their like) and how a call behaves (`--resume`, `--quiet`) is
  not part of a run's configuration.

"""


def markdown_page() -> str:
    """Write the page: commands, the groups of settings that they share, their own settings, and presets."""
    groups = dict.fromkeys(
        group for command in COMMANDS.values() for group in groups_of(command).values()
    )
    sections = [_INTRODUCTION + _commands(), *map(_group_section, groups)]
    sections += [_command_section(name, command) for name, command in COMMANDS.items()]
    return "\n".join(sections) + "\n" + _presets()


def _commands() -> str:
    rows = [
        f"| [`{name}`](#{_anchor(_title(name))}) | {_summary(command)} | {_links(groups_of(command).values())} |"
        for name, command in COMMANDS.items()
    ]
    head = "## Commands\n\n| `python -m jaxppo.` | what it does | groups beside its own settings |\n|---|---|---|\n"
    return head + "".join(f"{row}\n" for row in rows)


def _group_section(group: type) -> str:
    commands = {
        name: command for name, command in COMMANDS.items() if group in groups_of(command).values()
    }
    text = f"## {group.__name__}\n\n{_summary(group)} Of {', '.join(f'`{name}`' for name in commands)}.\n\n"
    text += _table(group(), [spec.name for spec in dataclasses.fields(group) if has_flag(spec)])
    for name, command in commands.items():
        unread = getattr(command, "UNREAD", ())
        settings = [f"`{spec.name}`" for spec in dataclasses.fields(group) if spec.name in unread]
        if settings:
            text += f"\n`{name}` does not read {', '.join(settings)}.\n"
    return text + _without_flags(group)


def _without_flags(settings: type) -> str:
    """Write the table of those fields of a group or command that have no flags anywhere."""
    names = [spec.name for spec in dataclasses.fields(settings) if not has_flag(spec)]
    return (
        f"\nIn files and in Python, without a flag:\n\n{_table(settings(), names)}" if names else ""
    )


def _command_section(name: str, command: type) -> str:
    text = f"## {_title(name)}\n\n{_summary(command)}\n\n{_table(command(), flag_names(command))}"
    text += _without_flags(command)
    # A command may begin with other values in a group that it shares: `train` trains on split rl.
    for field, group in groups_of(command).items():
        settings = getattr(command(), field)
        defaults = group()
        values = []
        for spec in dataclasses.fields(group):
            value = getattr(settings, spec.name)
            if value != getattr(defaults, spec.name):
                values.append(f"`{spec.name}` {_value(value)}")
        if values:
            text += f"\nOther defaults of {_links([group])} here: {', '.join(values)}.\n"
    return text


def _presets() -> str:
    text = (
        "## Presets\n\nNamed settings that come with jaxppo; what they leave out has its default.\n"
    )
    text += "One that names others in `preset` goes over them, the later over the earlier; `data/NAME` is a data set\n"
    text += "for several commands.\n"
    for command in [*COMMANDS, "data"]:
        folder = resources.files("jaxppo.config") / "presets" / command.replace(" ", "_")
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
            name = file.name.removesuffix(".yaml")
            content = file.read_text(encoding="utf-8").strip()
            text += f"\n### {command}: {name}\n\n```yaml\n{content}\n```\n"
    return text


def _table(settings: Any, names: Collection[str]) -> str:
    """Return those settings of one dataclass that are named, groups inside it left out."""
    meaning = meanings(type(settings))
    text = "| setting | type | default | meaning |\n|---|---|---|---|\n"
    for spec in dataclasses.fields(settings):
        if spec.name in names and not dataclasses.is_dataclass(spec.type):
            default = _value(getattr(settings, spec.name))
            kind = type_text(spec.type, SENTENCE_WORDS)
            text += f"| `{spec.name}` | {kind} | {default} | {_markdown(meaning[spec.name])} |\n"
    return text


def _markdown(text: str) -> str:
    """Plain text as the cell of a table; names of pages become links."""
    cell = ""
    for part in re.split(r"(`[^`]*`)", " ".join(text.split())):
        # Code stays as it is; in the text around it,
        # characters are escaped that Markdown would read.
        if not part.startswith("`"):
            part = re.sub(r"([*<])", r"\\\1", part)
            part = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", part)
        cell += part
    # A bar would end the cell, within code, too.
    return cell.replace("|", "\\|")


def _value(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return f"`{as_text(value)}`"


def _summary(settings: type) -> str:
    return _markdown(summary(settings))


def _title(command: str) -> str:
    return f"The command {command}"


def _links(groups: Iterable[type]) -> str:
    return ", ".join(f"[{group.__name__}](#{_anchor(group.__name__)})" for group in groups)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(markdown_page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
