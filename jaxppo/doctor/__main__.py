"""Check what is installed, whether it works, and what to install for what: `python -m jaxppo.doctor`.

A check that fails does not hide the others. The exit status is 0 if all that is required works, else 1.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from jaxppo import __version__
from jaxppo.doctor import checks, self_test
from jaxppo.doctor.checks import REPORT_IT, Check, Probe, has_extra, reason_of
from jaxppo.errors import JaxppoError

EXTRAS = {
    "gpu": "NVIDIA GPUs, with a driver for CUDA 13 (580 or newer)",
    "gpu-cuda12": "NVIDIA GPUs with an older driver (525 or newer)",
    "tpu": "Google TPUs",
    "aot-tpu": "`--target tpu-...` on any Linux machine: the compiler for TPUs",
    "aot-gpu": "`--target gpu-...` on any Linux machine: the compiler for NVIDIA GPUs",
    "planners": "reference plans from Aries, under a permissive licence",
    "planners-gpl": "reference plans from Fast Downward and pyperplan, which are under GPL-3.0",
    "torch": "models that come as pytorch_model.bin",
    "sentiment": "rewards from a text classifier: --reward_funcs sentiment",
    "server": "rewards for other machines: jaxppo reward_server",
    "tracking": "Weights & Biases: --report_to wandb",
    "docs": "the documentation site: mkdocs build --strict",
    "test": "the tests, linters and packages that jaxppo is compared with",
}
"""The extras of the package and what each is for; a test keeps `pyproject.toml` and `docs/install.md` in step."""

_COLOURS = {"ok": 32, "note": 36, "warning": 33, "failed": 31}
# Column of the findings: two blanks, a status and the longest name come before them.
_INDENT = 34


def probes(output_dir: Path, network: bool) -> dict[str, dict[str, Probe]]:
    """Return all checks, in groups.

    Args:
        output_dir: folder of future runs, whose disk is checked.
        network: send a request to the hub.
    """
    return {
        "Installation": {
            "python": checks.python_version,
            "packages": checks.packages,
            "environment": checks.environment,
        },
        "Machine": {
            "disk": partial(checks.disks, output_dir),
            "cache": checks.cache_folder,
        },
        "JAX": {"devices": checks.devices},
        "Validator and planners": {"VAL": self_test.val, "planners": checks.planners},
        "Hugging Face": {"hub": partial(checks.hub, network)},
        "Self-test (the first time compiles, which takes longer and is kept)": {
            "in-process validator": self_test.validators_agree,
            "PPO update": self_test.ppo_update,
        },
    }


def examine(groups: dict[str, dict[str, Probe]]) -> Iterator[tuple[str, Check]]:
    """Yield every check with the title of its group as soon as it is made, without secrets.

    Secrets are known only once the settings can be imported. Where they cannot, only the packages are checked, which
    show none.
    """
    try:
        from jaxppo.config.redact import redact
    except ImportError as error:
        missing = Check(
            "settings", "failed", f"cannot be read: {error}", "pip install --force-reinstall jaxppo"
        )
        redact = str
        groups = {
            "Installation": {"packages": checks.packages, "settings": lambda: iter([missing])}
        }
    for title, group in groups.items():
        for name, probe in group.items():
            for check in _guarded(name, probe):
                # Errors and addresses may quote a token.
                yield title, replace(check, finding=redact(check.finding), fix=redact(check.fix))


def _guarded(name: str, probe: Probe) -> Iterator[Check]:
    """Yield the checks of a probe; an exception becomes one more check that failed."""
    # From what the user can mend to what only a bug explains: each kind of error has its own
    # advice.
    try:
        yield from probe()
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        yield Check(
            name,
            "failed",
            f"cannot be checked: {error}",
            f"pip install {package}" if package else REPORT_IT,
        )
    except JaxppoError as error:
        yield Check(name, "failed", str(error), "change the value named here to what is expected")
    except OSError as error:
        yield Check(name, "failed", reason_of(error), "check permissions and free space there")
    except Exception as error:
        yield Check(name, "failed", reason_of(error), REPORT_IT)


def installed_extras() -> dict[str, bool]:
    """Return for every extra whether its packages are installed; {} where that is unknown."""
    # It reads the requirements; an installation that lacks it gets a failed check instead.
    if importlib.util.find_spec("packaging") is None:
        return {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return {extra: has_extra("jaxppo", extra) for extra in EXTRAS}
    return {}


def print_report(groups: dict[str, dict[str, Probe]]) -> bool:
    """Print every check and the extras; return whether all that is required works."""
    # Colours and a terminal's width are for people; what is written to a file is the same
    # everywhere.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    current = None
    statuses = []
    for title, check in examine(groups):
        if title != current:
            print(title if current is None else f"\n{title}")
            current = title
        # At once, since the next check may take a minute to compile.
        print(_as_text(check, width, coloured), flush=True)
        statuses.append(check.status)
    print(f"\nWhat to install for what\n{_extras_table()}\n")
    failed = statuses.count("failed")
    warnings = statuses.count("warning")
    works = "does not work" if failed else "works"
    print(
        f"What is required {works}: {failed} failed, {warnings} with a warning. For a bug report: --json"
    )
    return not failed


def _as_text(check: Check, width: int, coloured: bool) -> str:
    """Return a check as lines of text: status, name and what was found, then what to do."""
    text_width = max(40, width - _INDENT)
    lines = textwrap.wrap(_printable(check.finding), text_width)
    for number, line in enumerate(textwrap.wrap(_printable(check.fix), text_width)):
        lines.append(f"{'   ' if number else '-> '}{line}")
    # Colour codes take no place on the screen, so the status is padded before it gets them.
    status = f"{check.status:8}"
    if coloured:
        status = f"\x1b[{_COLOURS[check.status]}m{status}\x1b[0m"
    # 11 columns come before the name: two blanks, eight of the status, one blank.
    return f"  {status} {check.name:{_INDENT - 11}}" + f"\n{' ' * _INDENT}".join(lines)


def _printable(text: str) -> str:
    # Paths and errors may hold control characters, which a terminal would obey.
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _extras_table() -> str:
    is_installed = installed_extras()
    commands = {extra: f"pip install 'jaxppo[{extra}]'" for extra in EXTRAS}
    width = max(map(len, commands.values()))
    lines = []
    for extra, purpose in EXTRAS.items():
        state = "installed" if is_installed.get(extra) else "-"
        lines.append(f"  {state:9} {commands[extra]:{width}}  {purpose}")
    return "\n".join(lines)


def print_json(groups: dict[str, dict[str, Probe]]) -> bool:
    """Print every check as one JSON object; return whether all that is required works."""
    findings = []
    works = True
    for title, check in examine(groups):
        works = works and check.status != "failed"
        findings.append(
            {
                "group": title,
                "name": check.name,
                "status": check.status,
                "found": check.finding,
                "fix": check.fix,
            }
        )
    report = {
        "jaxppo": __version__,
        "works": works,
        "checks": findings,
        "extras": installed_extras(),
    }
    print(json.dumps(report, indent=2))
    return works


class _Parser(argparse.ArgumentParser):
    """A parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(
            2, f"error: {message}; expected some of --json, --network, --output_dir DIR, --help\n"
        )


def main(arguments: list[str] | None = None) -> None:
    """Check this machine and exit."""
    parser = _Parser(
        "python -m jaxppo.doctor", description=(__doc__ or "").split(":")[0], allow_abbrev=False
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object, for bug reports; without secrets",
    )
    parser.add_argument(
        "--network", action="store_true", help="also send a request to the Hugging Face hub"
    )
    output_dir_help = "folder of future runs, whose disk is checked (default: %(default)s)"
    parser.add_argument("--output_dir", type=Path, default=Path("outputs"), help=output_dir_help)
    options = parser.parse_args(arguments)
    groups = probes(options.output_dir.expanduser(), options.network)
    works = print_json(groups) if options.json else print_report(groups)
    sys.exit(0 if works else 1)


if __name__ == "__main__":
    main()
