"""Optimal Blocksworld plans by A* over moves of one block.

Every plan between states with an empty hand is a sequence of moves of two actions each, so fewest moves is fewest
actions. Two prunings keep an optimal plan in reach: a block that can go straight to its final place goes there, and
any other block worth moving goes to the table.
Source: Gupta and Nau, On the complexity of blocks-world planning, Artificial Intelligence 56 (1992).
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count

from jaxppo.errors import DataError
from jaxppo.planning.language.parse import Atom, Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.search import path_to

TABLE = -1
Places = tuple[int, ...]
"""For each block, in alphabetical order, the index of the block under it, or `TABLE`."""
Move = tuple[int, int]
"""A block and where it goes."""


def solve(problem: Problem) -> tuple[Action, ...]:
    """Find a shortest plan; the same problem always gives the same one.

    A* with the admissible and consistent heuristic "number of misplaced blocks" (each needs a move, two actions); ties
    go to the deeper node, then to the earlier one, moves being tried in alphabetical order of the blocks.

    Args:
        problem: a Blocksworld problem whose start and goal both give the place of every block.

    Raises:
        DataError: the start or the goal leaves a place open, or a block is held.
    """
    names = sorted(problem.objects)
    start = _places(names, problem.init, "init")
    goal = _places(names, (literal.atom for literal in problem.goal if literal.positive), "goal")
    return tuple(_actions(start, _search(start, goal), names))


def _places(names: list[str], atoms: Iterable[Atom], field: str) -> Places:
    index = {name: block for block, name in enumerate(names)}
    below: dict[str, int] = {}
    for atom in atoms:
        if atom[0] == "on":
            below[atom[1]] = index[atom[2]]
        elif atom[0] == "ontable":
            below[atom[1]] = TABLE
    for name in names:
        if name not in below:
            raise DataError(
                f"{field}: expected '(on {name} ...)' or '(ontable {name})', got neither"
            )
    return tuple(below[name] for name in names)


def _search(start: Places, goal: Places) -> list[Move]:
    # Among equals the deeper node is next, and then the
    # earlier one, so that nodes are never compared.
    arrival = count()
    frontier = [(len(_misplaced(start, goal)), 0, next(arrival), start)]
    came_from: dict[Places, tuple[Places, Move] | None] = {start: None}
    moves_to = {start: 0}
    while frontier:
        _, _, _, places = heapq.heappop(frontier)
        if places == goal:
            return path_to(places, came_from)
        n_moves = moves_to[places] + 1
        for block, target in _moves(places, goal):
            reached = (*places[:block], target, *places[block + 1 :])
            if n_moves < moves_to.get(reached, n_moves + 1):
                moves_to[reached] = n_moves
                came_from[reached] = (places, (block, target))
                priority = n_moves + len(_misplaced(reached, goal))
                heapq.heappush(frontier, (priority, -n_moves, next(arrival), reached))
    # From any towers all others can be reached, so the goal is none.
    raise DataError("goal: expected towers of blocks, got a cycle")


def _misplaced(places: Places, goal: Places) -> set[int]:
    """Find the blocks that must move: those not on their goal's block, and everything above them."""
    wrong = {block for block, below in enumerate(places) if below != goal[block]}
    # The table is under many blocks, so it has none above.
    above = {below: block for block, below in enumerate(places) if below != TABLE}
    for block in tuple(wrong):
        block = above.get(block, TABLE)
        # Up the tower, as far as that was not done already.
        while block not in wrong and block != TABLE:
            wrong.add(block)
            block = above.get(block, TABLE)
    return wrong


def _moves(places: Places, goal: Places) -> Iterator[Move]:
    """Yield the moves worth trying: the first that reaches a final place, else misplaced top blocks to the table."""
    misplaced = _misplaced(places, goal)
    clear = [block for block in sorted(misplaced) if block not in places]
    # A block that can go to its final place goes there at once: no plan gets longer by it.
    for block in clear:
        target = goal[block]
        if target == TABLE or (target not in misplaced and target not in places):
            yield block, target
            return
    yield from ((block, TABLE) for block in clear if places[block] != TABLE)


def _actions(places: Places, moves: Iterable[Move], names: list[str]) -> Iterator[Action]:
    below = list(places)
    for block, target in moves:
        source = below[block]
        below[block] = target
        yield (
            ("pick-up", names[block])
            if source == TABLE
            else ("unstack", names[block], names[source])
        )
        yield (
            ("put-down", names[block])
            if target == TABLE
            else ("stack", names[block], names[target])
        )
