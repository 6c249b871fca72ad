"""Blocksworld states as plain data, written without the package's own generator and solver."""

from collections.abc import Iterator

from jaxppo.planning import Problem, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD

Towers = tuple[tuple[str, ...], ...]


def all_states(blocks: str) -> Iterator[Towers]:
    """Every set of towers, each tower from the table upwards."""
    if not blocks:
        yield ()
        return
    first, rest = blocks[0], blocks[1:]
    for state in all_states(rest):
        yield (*state, (first,))
        for i, tower in enumerate(state):
            for height in range(len(tower) + 1):
                yield (*state[:i], (*tower[:height], first, *tower[height:]), *state[i + 1 :])


def place_atoms(towers: Towers) -> list[str]:
    bases = [f"(ontable {tower[0]})" for tower in towers]
    return bases + [f"(on {tower[height]} {tower[height - 1]})" for tower in towers for height in range(1, len(tower))]


def towers_problem(start: Towers, goal: Towers) -> Problem:
    blocks = " ".join(sorted(block for tower in start for block in tower))
    init = " ".join([*place_atoms(start), *(f"(clear {tower[-1]})" for tower in start), "(handempty)"])
    text = (
        f"(define (problem towers) (:domain blocksworld) (:objects {blocks}) (:init {init})"
        f" (:goal (and {' '.join(place_atoms(goal))})))"
    )
    return parse_problem(text, parse_domain(BLOCKSWORLD.pddl))
