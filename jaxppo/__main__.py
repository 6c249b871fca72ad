"""Every command under one name: `jaxppo train ...` is `python -m jaxppo.train ...`."""

import runpy
import sys
from collections.abc import Sequence

from jaxppo import __version__
from jaxppo.errors import did_you_mean

COMMANDS = {
    "train": "PPO, RLOO or GRPO, from prompts to a better policy",
    "sft": "a supervised warm start on reference plans",
    "reward_model": "a reward model from preferences",
    "self_train": "rounds of sampling plans and learning from the valid ones",
    "evaluate": "plans of models or of a file, judged and compared",
    "export": "Hugging Face folders from a checkpoint",
    "report": "a page about a run, or about several side by side",
    "reward_server": "a reward function for other machines, over HTTP",
    "planning": "one plan judged, one problem solved; data sets: build, import, inspect, push",
    "toys": "small models and data sets for recipes without a network",
    "metrics": "every metric explained, as a page of Markdown",
    "doctor": "what is installed, whether it works, and what to install",
}
"""Modules that can be run, in the order of the help; the names work with hyphens too."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command as `python -m jaxppo.<command>` would; nothing heavy is imported before it is known.

    Args:
        arguments: the words after `jaxppo`; default: those of the command line.
    """
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
    elif name in ("-V", "--version"):
        print(f"jaxppo {__version__}")
    elif name.replace("-", "_") in COMMANDS:
        sys.argv[1:] = rest
        runpy.run_module(f"jaxppo.{name.replace('-', '_')}", run_name="__main__", alter_sys=True)
    else:
        hint = did_you_mean(name.replace("-", "_"), COMMANDS)
        expected = f"one of {', '.join(COMMANDS)}"
        print(
            f"error: command: expected {expected}, got {name!r}{hint} (jaxppo --help)",
            file=sys.stderr,
        )
        sys.exit(2)


def usage() -> str:
    """Return the help."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: jaxppo [--version] COMMAND [flags]\n\n"
        "Fine-tune causal language models with PPO, RLOO or GRPO in JAX, with rewards computed on the host.\n\n"
        f"commands, each with a --help of its own:\n{commands}\n\n"
        "`jaxppo COMMAND` is the same as `python -m jaxppo.COMMAND`. If something does not work: jaxppo doctor"
    )


if __name__ == "__main__":
    main()
