"""The command: python -m jaxppo.planning validate|solve|build|import|inspect|push [flags].

Every sub-command imports what it needs by itself, so that `--help` and the check of one plan do not wait for the
packages of all the others.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxppo.config.sources import parse_cli, parse_flags
from jaxppo.errors import (
    ConfigError,
    DataError,
    PddlError,
    ValidatorError,
    did_you_mean,
    with_file_names,
)
from jaxppo.run import cli
from jaxppo.run.console import Console, sanitize

_USAGE = """usage: python -m jaxppo.planning {validate,solve,build,import,inspect,push} [flags]

  validate judge one plan: DOMAIN PROBLEM PLAN
  solve    print a plan for one problem: DOMAIN PROBLEM
  build    make a data set from the generators of this package
  import   make a data set from PDDL files, PlanBench or other rows
  inspect  check a data set and show what it holds
  push     push a data set to the Hugging Face hub

`python -m jaxppo.planning build --help` lists the flags of build, and so on."""


def build(arguments: list[str]) -> None:
    """Make a data set from the generators of this package."""
    from jaxppo.planning.datasets.build import build_dataset
    from jaxppo.planning.datasets.config import BuildConfig

    config = parse_cli(BuildConfig, "planning build", arguments)
    build_dataset(config, Console(config.quiet))


def import_problems(arguments: list[str]) -> None:
    """Make a data set from PDDL files, PlanBench or other rows."""
    from jaxppo.planning.datasets.config import ImportConfig
    from jaxppo.planning.importing.importers import import_problems

    config = parse_cli(ImportConfig, "planning import", arguments)
    import_problems(config, Console(config.quiet))


def inspect(arguments: list[str]) -> None:
    """Check a data set and show what it holds."""
    from jaxppo.planning.datasets.config import InspectConfig
    from jaxppo.planning.datasets.inspect import inspect_data

    inspect_data(parse_flags(InspectConfig, "planning inspect", arguments), Console())


def push(arguments: list[str]) -> None:
    """Push a data set to the Hugging Face hub."""
    from jaxppo.planning.datasets.config import PushConfig
    from jaxppo.planning.datasets.files import written_files

    config = parse_flags(PushConfig, "planning push", arguments)
    files = {path.name: path for path in written_files(Path(config.folder))}
    # Slow to import, so only once the files are there.
    from jaxppo.hf import hub

    Console().result(
        f"data set at {hub.push(files, config.hub_dataset_id, config.private, 'dataset')}"
    )


def validate(arguments: list[str]) -> None:
    """Judge one plan; the exit status says whether it is valid."""
    from jaxppo.planning.answers.plan_check import check_as_text, check_plan
    from jaxppo.planning.datasets.config import ValidateConfig
    from jaxppo.planning.datasets.files import decode_pddl_text, read_pddl_text

    config = parse_flags(ValidateConfig, "planning validate", arguments)
    domain = read_pddl_text(Path(config.domain))
    problem = read_pddl_text(Path(config.problem))
    if config.plan == "-":
        plan = decode_pddl_text(sys.stdin.buffer.read(), "standard input")
    else:
        plan = read_pddl_text(Path(config.plan))
    try:
        check = check_plan(domain, problem, plan, config.val)
    except (PddlError, ValidatorError) as error:
        raise DataError(with_file_names(str(error), config.domain, config.problem)) from error
    Console().result(json.dumps(check) if config.json else check_as_text(check))
    if not check["valid"]:
        sys.exit(1)


def solve(arguments: list[str]) -> None:
    """Print a plan for one problem; the exit status says whether one was found."""
    from jaxppo.planning.datasets.config import SolveConfig
    from jaxppo.planning.datasets.files import read_pddl_text
    from jaxppo.planning.solve.planners import PLANNERS, PlanTask, find_plans, write_plan

    config = parse_flags(SolveConfig, "planning solve", arguments)
    domain = read_pddl_text(Path(config.domain))
    problem = read_pddl_text(Path(config.problem))
    planner = config.planner
    # An unknown planner passes here: `find_plans` names those that exist.
    if config.optimal and planner in PLANNERS and not PLANNERS[planner].optimal:
        planner = f"{planner}-optimal"
    task = PlanTask(config.problem, domain, problem)
    (result,) = find_plans([task], planner=planner, timeout_s=config.planner_timeout_s, workers=1)
    if result.plan is None:
        reason = with_file_names(result.reason or "", config.domain, config.problem)
        print(
            f"no plan: {sanitize(reason)} ({result.planner}, {result.seconds:.2f} s)",
            file=sys.stderr,
        )
        sys.exit(1)
    Console().result(write_plan(domain, problem, result.plan))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "validate": validate,
    "solve": solve,
    "build": build,
    "import": import_problems,
    "inspect": inspect,
    "push": push,
}


def run(arguments: Sequence[str]) -> None:
    """Run a sub-command.

    Raises:
        ConfigError: no sub-command has that name.
    """
    name, *flags = arguments or [""]
    if name in ("-h", "--help"):
        print(_USAGE)
        return
    if name not in COMMANDS:
        raise ConfigError(
            f"command: expected one of {', '.join(COMMANDS)}, got {name!r}{did_you_mean(name, COMMANDS)}"
        )
    try:
        COMMANDS[name](flags)
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        sys.exit(130)  # as shells do: 128 and the number of SIGINT


if __name__ == "__main__":
    cli.main(lambda: run(sys.argv[1:]), uses_jax=False)
