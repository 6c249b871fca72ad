"""The same problem from another state."""

from collections.abc import Collection

from jaxppo.planning.language.parse import Atom
from jaxppo.planning.language.sexpr import Node, read_fast
from jaxppo.planning.transform.renaming import write_definition


def from_state(problem_pddl: str, facts: Collection[Atom]) -> str:
    """Let a problem begin in another state, with its objects and goal as they are.

    Facts that the problem begins with keep their place; the others come behind them, sorted. Values of functions stay.

    Args:
        problem_pddl: problem text.
        facts: the atoms that hold, in lower case.
    """
    form = read_fast(problem_pddl, "<problem>")
    for number, section in enumerate(form):
        if isinstance(section, list) and section[:1] == [":init"]:
            known = {tuple(fact) for fact in section[1:] if "=" not in fact[:1]}
            kept = [fact for fact in section[1:] if "=" in fact[:1] or tuple(fact) in facts]
            new: list[Node] = [list[Node](fact) for fact in sorted(set(facts) - known)]
            form[number] = [":init", *kept, *new]
    return write_definition(form)
