"""Facts, conditions and effects of PDDL as English clauses; variables are written in capitals, names as they are."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxppo.planning.domains import Phrases
from jaxppo.planning.language.conditions import (
    Comparison,
    Condition,
    Junction,
    Literal,
    Quantified,
)
from jaxppo.planning.language.numeric import (
    Expression,
    Operation,
    Update,
    is_number,
    write_expression,
)
from jaxppo.planning.language.scope import TOTAL_COST, Atom, Parameter, Types
from jaxppo.planning.prompts.phrases import listed

NOT = "it is not true that"
_COMPARISONS: Mapping[str, str] = {
    "<": "less than",
    "<=": "at most",
    "=": "equal to",
    ">=": "at least",
    ">": "more than",
}
_UPDATES: Mapping[str, str] = {
    "increase": "{0} rises by {1}",
    "decrease": "{0} falls by {1}",
    "assign": "{0} becomes {1}",
    "scale-up": "{0} is multiplied by {1}",
    "scale-down": "{0} is divided by {1}",
}


class Clauses(NamedTuple):
    """Writes clauses with the phrases of a domain."""

    phrases: Phrases

    def atom(self, atom: Atom) -> str:
        """Write a fact: `block a is on block b`."""
        terms = list(map(term, atom[1:]))
        if atom[0] == "=":
            return f"{listed(terms)} are the same"
        return self.phrases.predicates[atom[0]].format(*terms)

    def literal(self, literal: Literal) -> str:
        """Write a fact or its negation."""
        return self.atom(literal.atom) if literal.positive else f"{NOT} {self.atom(literal.atom)}"

    def condition(self, condition: Condition) -> str:
        """Write any condition, in parentheses where it has parts."""
        match condition:
            case Literal():
                return self.literal(condition)
            case Junction("not", (part,)):
                return f"{NOT} {self.condition(part)}"
            case Junction("imply", (left, right)):
                return f"(if {self.condition(left)}, then {self.condition(right)})"
            case Junction(word, parts):
                if not parts:
                    return "(nothing)"
                joined = f" {word} ".join(map(self.condition, parts))
                return f"({joined})"
            case Quantified(word, parameters, body, _):
                quantifier = {"forall": "for every", "exists": "for some"}[word]
                return f"({quantifier} {self.variables(parameters)}: {self.condition(body)})"
            case Comparison(operator, left, right):
                return f"{expression(left)} is {_COMPARISONS[operator]} {expression(right)}"

    def variables(self, parameters: Iterable[Parameter]) -> str:
        """Write `X that is a truck and Y that is a place`."""
        return listed([f"{term(name)} that {self.is_of(types)}" for name, types in parameters])

    def is_of(self, types: Types) -> str:
        """Write `is a truck`, also of one of several types."""
        kinds = [self.phrases.kinds[name][0] for name in types]
        return f"is {' or '.join(kinds)}"


def term(name: str) -> str:
    """Write a variable `?from` as `FROM`, a name as it is."""
    # Names are in lower case once they are read, so capitals are free.
    return name[1:].upper() if name[0] == "?" else name


def expression(value: Expression) -> str:
    """Write a number: `3`, `length of home and hub`, `(length of home and hub + 3)`."""
    if isinstance(value, Operation):
        parts = list(map(expression, value.arguments))
        # PDDL's `-` of one argument is the sign.
        if len(parts) == 1:
            return f"(- {parts[0]})"
        joined = f" {value.operator} ".join(parts)
        return f"({joined})"
    if is_number(value):
        return write_expression(value)
    # The one function that every domain with costs has gets words of its own.
    if value == (TOTAL_COST,):
        return "the total cost"
    name, *terms = value
    if not terms:
        return name
    return f"{name} of {listed(list(map(term, terms)))}"


def update(change: Update) -> str:
    """Write a change of a number: `the total cost rises by 3`."""
    function = expression(change.function)
    amount = expression(change.amount)
    return _UPDATES[change.operator].format(function, amount)
