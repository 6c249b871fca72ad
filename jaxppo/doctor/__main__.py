"""Check what is installed, whether it works, and what to install for what: `python -m jaxppo.doctor`.

A check that fails does not hide the others. The exit status is 0 if all that is required works, else 1.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace

from jaxppo import __version__
from jaxppo.doctor import checks, self_test
from jaxppo.doctor.checks import REPORT_IT, Check, Probe, reason_of
from jaxppo.errors import JaxppoError

EXTRAS = {
    "gpu": "NVIDIA GPUs, with a driver for CUDA 13 (580 or newer)",
    "gpu-cuda12": "NVIDIA GPUs with an older driver (525 or newer)",
    "tpu": "Google TPUs",
    "aot-tpu": "`--target tpu-...` on any Linux machine: the compiler for TPUs",
    "aot-gpu": "`--target gpu-...` on any Linux machine: the compiler for NVIDIA GPUs",
    "planners-gpl": "reference plans from Fast Downward, which is under GPL-3.0",
    "torch": "models that come as pytorch_model.bin",
    "sentiment": "rewards from a text classifier: --reward_funcs sentiment",
    "server": "rewards for other machines: jaxppo reward_server",
    "tracking": "Weights & Biases: --report_to wandb",
    "docs": "the documentation site: mkdocs build --strict",
    "test": "the tests, linters and packages that jaxppo is compared with",
}
"""The extras of the package and what each is for; a test keeps `pyproject.toml` and `docs/install.md` in step."""

# Column of the findings: two blanks, a status and the longest name come before them.
_INDENT = 34

PROBES: dict[str, dict[str, Probe]] = {
    "Installation": {
        "python": checks.python_version,
        "packages": checks.packages,
        "environment": checks.environment,
    },
    "JAX": {"devices": checks.devices},
    "Self-test (the first time compiles, which takes longer and is kept)": {
        "validators": self_test.validators,
        "PPO update": self_test.ppo_update,
    },
}
"""All checks, in groups."""


def examine() -> Iterator[tuple[str, Check]]:
    """Yield every check with the title of its group as soon as it is made, without secrets.

    Secrets are known only once the settings can be imported. Where they cannot, only the packages are checked, which
    show none.
    """
    groups = PROBES
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
    try:
        yield from probe()
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        yield Check(name, "failed", f"cannot be checked: {error}", f"pip install {package}")
    except JaxppoError as error:  # says what to do by itself
        yield Check(name, "failed", str(error))
    except Exception as error:
        yield Check(name, "failed", reason_of(error), REPORT_IT)


def print_report() -> bool:
    """Print every check and the extras; return whether all that is required works."""
    # A terminal's width is for people; what is written to a file is the same everywhere.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    current = None
    statuses = []
    for title, check in examine():
        if title != current:
            print(title if current is None else f"\n{title}")
            current = title
        # At once, since the next check may take a minute to compile.
        print(_as_text(check, width), flush=True)
        statuses.append(check.status)
    print(f"\nWhat to install for what\n{_extras_table()}\n")
    failed = statuses.count("failed")
    warnings = statuses.count("warning")
    works = "does not work" if failed else "works"
    print(
        f"What is required {works}: {failed} failed, {warnings} with a warning. For a bug report: --json"
    )
    return not failed


def _as_text(check: Check, width: int) -> str:
    """Return a check as lines of text: status, name and what was found, then what to do."""
    text_width = max(40, width - _INDENT)
    lines = textwrap.wrap(check.finding, text_width)
    for number, line in enumerate(textwrap.wrap(check.fix, text_width)):
        lines.append(f"{'   ' if number else '-> '}{line}")
    # 11 columns come before the name: two blanks, eight of the status, one blank.
    start = f"  {check.status:8} {check.name:{_INDENT - 11}}"
    return start + f"\n{' ' * _INDENT}".join(lines)


def _extras_table() -> str:
    commands = {extra: f"pip install 'jaxppo[{extra}]'" for extra in EXTRAS}
    width = max(map(len, commands.values()))
    return "\n".join(f"  {commands[extra]:{width}}  {EXTRAS[extra]}" for extra in EXTRAS)


def print_json() -> bool:
    """Print every check as one JSON object; return whether all that is required works."""
    findings = []
    works = True
    for title, check in examine():
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
    }
    print(json.dumps(report, indent=2))
    return works


def main(arguments: list[str] | None = None) -> None:
    """Check this machine and exit."""
    parser = argparse.ArgumentParser(
        "python -m jaxppo.doctor", description=(__doc__ or "").split(":")[0], allow_abbrev=False
    )
    json_help = "print one JSON object, for bug reports; without secrets"
    parser.add_argument("--json", action="store_true", help=json_help)
    options = parser.parse_args(arguments)
    works = print_json() if options.json else print_report()
    sys.exit(0 if works else 1)


if __name__ == "__main__":
    main()
