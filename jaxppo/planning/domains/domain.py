"""What a planning domain is: its PDDL, random problems of any size, and its names in English."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from jaxppo.errors import ConfigError
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """What the names of a domain are in English; `{0}`, `{1}`, ... stand for the arguments.

    Attributes:
        about: what the domain is about, in full sentences.
        kinds: type to what follows `x is` and `x and y are`: ("a truck", "trucks").
        predicates: name to a clause.
        actions: name to what follows `you can`: at least one word, each argument once. No two of them may read alike,
            since completions in English are parsed by them.
    """

    about: str
    kinds: Mapping[str, tuple[str, str]]
    predicates: Mapping[str, str]
    actions: Mapping[str, str]


# Without slots, which `cached_property` cannot have.
@dataclass(frozen=True, kw_only=True)
class PlanningDomain:
    """A domain with a generator of solvable problems.

    Attributes:
        name: the name that its PDDL gives itself; the PDDL is in `<name>.pddl`, beside this file.
        sizes: the sizes that `draw` takes.
        train_sizes: those of training problems: most have plans of 3 to 16 steps.
        larger_sizes: those of larger test problems: most have plans of at most 40 steps.
        pools: type, or kind of object, to the names that its objects may have; each is one word of a tokenizer.
        draw: writes a random problem, given a size, the only source of randomness and the problem's name.
        phrases: its names in English.
        constants: names of the domain's own constants, which problems may use, too.
        unseen: whether data sets keep it for the split test_unseen, by default.
        solve: finds optimal plans; None: the domain has no solver of its own.
        planner: name of `solve` in the column `planner` of rows.
    """

    name: str
    sizes: range
    train_sizes: range
    larger_sizes: range
    pools: Mapping[str, Sequence[str]]
    draw: Callable[[int, random.Random, str], str]
    phrases: Phrases
    constants: tuple[str, ...] = ()
    unseen: bool = False
    solve: Callable[[Problem], tuple[Action, ...]] | None = None
    planner: str = ""

    @cached_property
    def pddl(self) -> str:
        """The domain text."""
        return Path(__file__).with_name(f"{self.name}.pddl").read_text(encoding="utf-8")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All object names that problems may use."""
        return (*self.constants, *chain.from_iterable(self.pools.values()))

    def generate_problem(self, size: int, rng: random.Random, name: str) -> str:
        """Write a random problem as PDDL text.

        Args:
            size: one of `sizes`.
            rng: the only source of randomness.
            name: the problem's name.

        Raises:
            ConfigError: the size is out of range.
        """
        # A generator would find no names for more objects, and no goal for fewer.
        if size not in self.sizes:
            raise ConfigError(
                f"sizes: expected {self.sizes[0]} to {self.sizes[-1]} for {self.name}, got {size}"
            )
        return self.draw(size, rng, name)
