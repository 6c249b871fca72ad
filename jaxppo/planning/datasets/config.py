"""Settings of the commands of `python -m jaxppo.planning`: frozen dataclasses, checked when made."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jaxppo.config import require, require_repo_id
from jaxppo.errors import ConfigError
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES

SHORT_LENGTHS = "3-16"
LONG_LENGTHS = "20-40"
# The choices of the flag are those of the registry, which a type checker cannot read.
if TYPE_CHECKING:
    PromptStyle = str
else:
    PromptStyle = Literal[*PROMPT_STYLES]


def parse_lengths(text: str, name: str = "lengths") -> range:
    """Read `"3-16"` as the plan lengths from 3 to 16.

    Raises:
        ConfigError: the text is not two whole numbers with a hyphen, the lower one first.
    """
    lengths = _parse_range(text)
    if lengths is None:
        raise ConfigError(f"{name}: expected a band of plan lengths such as '3-16', got {text!r}")
    return lengths


def parse_domain_sizes(texts: Sequence[str], name: str = "train_sizes") -> dict[str, range]:
    """Read `("blocksworld:3-6", ...)` as {domain: sizes}.

    Raises:
        ConfigError: a text is not a domain, a colon and a range, or a domain comes twice.
    """
    sizes: dict[str, range] = {}
    for text in texts:
        domain, _, span = text.partition(":")
        domain_sizes = _parse_range(span)
        if domain_sizes is None:
            raise ConfigError(
                f"{name}: expected DOMAIN:LOW-HIGH such as blocksworld:3-6, got {text!r}"
            )
        require(domain not in sizes, name, "each domain once", domain)
        sizes[domain] = domain_sizes
    return sizes


def _parse_range(text: str) -> range | None:
    """Read `3-16`, both ends included; None where a text is not of that kind, or the range is empty."""
    match = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if match is None:
        return None
    numbers = range(int(match[1]), int(match[2]) + 1)
    return numbers or None


def is_split_name(text: str) -> bool:
    """Return whether a split may have this name: its files have it, too."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", text) is not None


def _check_bands(short: str, long: str) -> None:
    short_band = parse_lengths(short, "short_lengths")
    long_band = parse_lengths(long, "long_lengths")
    # Bands that touch count as a leak, see `find_leaks`.
    if long_band[0] <= short_band[-1] + 1:
        raise ConfigError(
            "long_lengths: expected plan lengths that begin at least 2 above the end of short_lengths "
            f"({short}), got {long!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """Where reference plans come from."""

    planner: str = "builtin"
    """Planner for reference plans; docs/planners.md lists them. In imports also none: only plans of the source."""
    planner_timeout_s: float = 30.0
    """Seconds for one problem."""
    workers: int | None = None
    """Planner processes; default: the number of processors."""

    def __post_init__(self) -> None:
        require(
            self.planner_timeout_s > 0,
            "planner_timeout_s",
            "a number above 0",
            self.planner_timeout_s,
        )
        if self.workers is not None:
            require(self.workers > 0, "workers", "a number above 0", self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """Problems of our own generators, solved and split."""

    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    output_dir: str = "data/planning"
    """Folder for the data set; one that holds an unfinished build of the same settings is continued."""
    domains: tuple[str, ...] = tuple(name for name, domain in DOMAINS.items() if not domain.unseen)
    """Domains of the splits train, rl, test, test_longer and test_larger."""
    unseen_domains: tuple[str, ...] = tuple(
        name for name, domain in DOMAINS.items() if domain.unseen
    )
    """Domains of the split test_unseen; none of `domains`."""
    n_train: int = 200
    """Rows of train for each domain; 0 for a data set without this split."""
    n_rl: int = 50
    """Rows of rl for each domain."""
    n_test: int = 50
    """Rows of each test split for each domain."""
    n_renamings: int = 0
    """Further rows of train for each of its problems, with other names for the objects and another order of atoms."""
    short_lengths: str = SHORT_LENGTHS
    """Lengths of reference plans in all splits but test_longer and test_larger."""
    long_lengths: str = LONG_LENGTHS
    """Lengths of reference plans in test_longer; test_larger has both."""
    rl_lengths: str | None = None
    """Lengths of reference plans in rl; default: short_lengths."""
    train_sizes: tuple[str, ...] = ()
    """Sizes in train, rl, test and test_unseen as DOMAIN:LOW-HIGH, such as blocksworld:3-6, where they are not the
    generator's own; docs/datasets.md says what a size counts."""
    seed: int = 0
    """Decides the problems; the same seed gives the same files."""
    prompt_style: PromptStyle = "atoms"
    """How a problem is written as a prompt."""
    use_val: bool | None = None
    """Whether VAL checks every reference plan, too; default: where it is installed."""
    quiet: bool = False
    """Print the result and warnings only."""
    planners: PlannerConfig = field(default_factory=PlannerConfig)

    def __post_init__(self) -> None:
        _check_bands(self.short_lengths, self.long_lengths)
        if self.rl_lengths is not None:
            parse_lengths(self.rl_lengths, "rl_lengths")
        parse_domain_sizes(self.train_sizes)
        for name in ("n_train", "n_rl", "n_test", "n_renamings"):
            require(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        require(
            self.n_train + self.n_rl + self.n_test > 0,
            "n_train",
            "some rows in some split",
            self.n_train,
        )
        shared = sorted(set(self.domains) & set(self.unseen_domains))
        require(
            not shared, "unseen_domains", "domains that are not in `domains`", ", ".join(shared)
        )
        for field_name in ("domains", "unseen_domains"):
            names = getattr(self, field_name)
            require(len(set(names)) == len(names), field_name, "each domain once", ", ".join(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """Problems made by others, with their plans where they have any."""

    preset: str | None = None
    """Named set of defaults shipped with jaxppo; without it, and without --config, the preset `default`."""
    config: str | None = None
    """YAML file of `flag: value` lines, laid over the preset; the command line goes over both."""
    source: str | None = None
    """What to import: a folder of PDDL files, or a file or folder of PlanBench's JSON, of the paper's JSON lines, or of
    our own rows."""
    kind: Literal["auto", "pddl", "planbench", "paper", "rows"] = "auto"
    """Kind of the source; auto: recognise it by its files."""
    pddl_dir: str | None = None
    """Folder with the PDDL files of PlanBench's or the paper's instances; default: the source, where it is a folder."""
    output_dir: str = "data/imported"
    """Folder for the data set; one that holds an unfinished import of the same settings is continued."""
    split: str = "auto"
    """The split that all problems go to; auto: by length of plan, number of objects and canonical form, as in build;
    keep: those of our own rows."""
    max_train_objects: int | None = None
    """With split auto, problems with more objects go to test_larger; default: those with more than all of train, rl and
    test."""
    unseen_domains: tuple[str, ...] = ()
    """With split auto, domains that go to test_unseen."""
    n_renamings: int = 0
    """Further rows of train for each of its problems, with names that other objects of the domain have in train, and
    another order of atoms; fewer where that gives no new prompts."""
    replace_invalid_plans: bool = False
    """Let the planner solve problems whose plan is not valid, instead of leaving them out."""
    short_lengths: str = SHORT_LENGTHS
    """With split auto, lengths of reference plans in all splits but test_longer and test_larger."""
    long_lengths: str = LONG_LENGTHS
    """With split auto, lengths of reference plans in test_longer; test_larger has both."""
    prompt_style: PromptStyle = "atoms"
    """How a problem is written as a prompt."""
    use_val: bool | None = None
    """Whether VAL checks every reference plan, too; default: where it is installed."""
    quiet: bool = False
    """Print the result and warnings only."""
    planners: PlannerConfig = field(default_factory=PlannerConfig)

    def __post_init__(self) -> None:
        _check_bands(self.short_lengths, self.long_lengths)
        require(self.n_renamings >= 0, "n_renamings", "0 or more", self.n_renamings)
        require(
            is_split_name(self.split),
            "split",
            "auto, keep, or a name of letters, digits, '_' and '-'",
            self.split,
        )
        if self.max_train_objects is not None:
            require(
                self.max_train_objects > 0,
                "max_train_objects",
                "a number above 0",
                self.max_train_objects,
            )
        # These decide which split a problem goes to, and do nothing where all go to one.
        if self.split != "auto":
            for name, unset in (("max_train_objects", None), ("unseen_domains", ())):
                value = getattr(self, name)
                require(value == unset, name, "nothing unless split is auto", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig:
    """The contents of a data set, and what is wrong with it."""

    dataset: str | None = None
    """Folder of the data set."""
    show: int = 0
    """Rows of each split to print."""

    def __post_init__(self) -> None:
        require(self.show >= 0, "show", "0 or more", self.show)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """A data set on the Hugging Face hub."""

    folder: tyro.conf.Positional[str]
    """Folder of the data set, as build or import has written it."""
    hub_dataset_id: str
    """Repository to push to, user/name; it is created if it does not exist."""
    private: bool = False
    """Make the repository private; an existing one must be private. Default: the owner's setting for new ones."""

    def __post_init__(self) -> None:
        require_repo_id("hub_dataset_id", self.hub_dataset_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConfig:
    """One plan judged: where it fails, what is missing there, which conditions of the goal do not hold.

    Exit status: 0 for a valid plan, 1 for one that is not, 2 where there is no verdict.
    """

    domain: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DOMAIN")]]
    """File of the domain."""
    problem: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PROBLEM")]]
    """File of the problem."""
    plan: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PLAN")]]
    """File of the plan, or `-` for standard input: `(action args)` one after another, with time stamps or without."""
    val: bool = False
    """Ask VAL, too, and show its verdict beside."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveConfig:
    """A plan for one problem, checked, as a plan file.

    Exit status: 0 where a plan is found, 1 where none is, 2 where nothing could be asked.
    """

    domain: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DOMAIN")]]
    """File of the domain."""
    problem: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PROBLEM")]]
    """File of the problem."""
    planner: str = "builtin"
    """The planner: builtin, or one of docs/planners.md."""
    optimal: bool = False
    """Take the planner's way to shortest plans (cheapest ones, where the problem has a metric)."""
    planner_timeout_s: float = 60.0
    """Seconds until the planner is stopped."""

    def __post_init__(self) -> None:
        require(
            self.planner_timeout_s > 0,
            "planner_timeout_s",
            "a number above 0",
            self.planner_timeout_s,
        )
