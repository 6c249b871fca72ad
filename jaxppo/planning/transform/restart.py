"""The same problem from another state."""

from collections.abc import Collection, Sequence

from jaxppo.errors import DataError
from jaxppo.planning.language.parse import Atom, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, format_action
from jaxppo.planning.language.sexpr import Node, read_form
from jaxppo.planning.language.task import compares_numbers
from jaxppo.planning.transform.renaming import write_definition
from jaxppo.planning.validate.validator import execute, final_facts


def from_state(problem_pddl: str, facts: Collection[Atom]) -> str:
    """Let a problem begin in another state, with its objects and goal as they are.

    Facts that held at the start keep their place; new ones follow, sorted. Values of functions stay.

    Args:
        problem_pddl: problem text.
        facts: the atoms that hold, in lower case.
    """
    form = read_form(problem_pddl, "<problem>")
    for number, section in enumerate(form):
        if section[:1] == [":init"]:
            remaining: list[Node] = []
            new_facts = set(facts)
            for fact in section[1:]:
                # Values are no facts, and stay. What is negated may go: what is not stated does not hold anyway.
                if fact[:1] == ["="]:
                    remaining.append(fact)
                elif fact[:1] != ["not"] and tuple(fact) in facts:
                    remaining.append(fact)
                    new_facts.discard(tuple(fact))
            for fact in sorted(new_facts):
                remaining.append(list(fact))
            form[number] = [":init", *remaining]
    return write_definition(form)


def problem_after(problem_pddl: str, domain_pddl: str, actions: Sequence[Action]) -> str:
    """Return a problem that begins where these actions lead.

    Raises:
        DataError: an action cannot be applied, or conditions compare numbers.
        PddlError: the built-in validator cannot read the texts.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    num_executed = execute(problem, actions).executed_steps or 0
    if num_executed < len(actions):
        step = format_action(actions[num_executed])
        raise DataError(
            f"reference_plan: expected steps that can be applied, got {step} as step {num_executed + 1}"
        )
    # Values are not written into the new initial state, so they must not decide anything.
    if compares_numbers(problem):
        raise DataError(
            "problem_pddl: expected no numbers that conditions compare, to begin after a step, got some"
        )
    return from_state(problem_pddl, final_facts(problem, actions))
