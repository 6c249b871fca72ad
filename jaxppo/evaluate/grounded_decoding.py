"""A decoder that looks at the state of the problem while a plan is written; for evaluation alone.

The model writes a plan, its first action is done, and the model is asked again from the state after it, until the goal
holds. Each prompt is one more problem of the kind that the model knows: where objects are numbered as the prompt
mentions them, they get new numbers. It knows the domain, and sees that the goal holds: a number that uses it says so.

Source: regrounding of SymTED, arXiv:2508.07743 (2025).
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxppo import data
from jaxppo.data import Row
from jaxppo.errors import DataError
from jaxppo.evaluate.decoding import Decoder
from jaxppo.planning import parse_domain, parse_problem, prompts
from jaxppo.planning.datasets.renamed_rows import is_numbered, numbered_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.walk import StateSpace
from jaxppo.planning.transform.renaming import inverse, rename_plan
from jaxppo.planning.transform.restart import from_state
from jaxppo.types import Params


class Answer(NamedTuple):
    """A plan, and the tokens that were sampled for it."""

    text: str
    ended: bool
    tokens: int


def decode_regrounded(decoder: Decoder, params: Params, rows: Sequence[Row], most: int | None) -> list[Answer]:
    """Write a plan for each row.

    Args:
        decoder: completes prompts.
        params: of the language model.
        rows: planning problems whose prompts are of a built-in style.
        most: tokens of a prompt; None: any number.

    Raises:
        DataError: a prompt is not what its style makes of the problem.
        UnsupportedPddlError: a problem goes beyond STRIPS.
    """
    spaces = [_space(row) for row in rows]
    states = [space.start for space in spaces]
    plans: list[list[Action]] = [[] for _ in rows]
    tokens = [0] * len(rows)
    waiting = [i for i, space in enumerate(spaces) if not space.is_goal(states[i])]
    for row in rows:
        if row["prompt"] != prompts.render_prompt(row["domain_pddl"], row["problem_pddl"], row["prompt_style"]):
            expected = f"the prompt that style {row['prompt_style']} makes of the problem, to write it for other states"
            raise DataError(f"decoder: expected {expected}, got another one in row {row['id']}")
    numbered = list(map(is_numbered, rows))
    while waiting:
        asked = [_from(rows[i], states[i], len(plans[i]), numbered[i]) for i in waiting]
        encoded = data.encode_prompts(decoder.tokenizer, [one.row for one in asked], most, template=decoder.template)
        decoder.make_room(max(map(len, encoded)))
        greedy = np.zeros((len(encoded), decoder.length), np.float32)
        going = []
        for i, one, completion in zip(waiting, asked, decoder(params, encoded, greedy), strict=True):
            tokens[i] += len(completion.ids)
            written = prompts.parse_completion(completion.text, rows[i]["prompt_style"], rows[i]["domain_pddl"])
            if not written.actions:
                continue
            [action] = rename_plan(written.actions[:1], one.names)
            plans[i].append(action)
            reached = spaces[i].after(states[i], action)
            if reached is None or spaces[i].is_goal(reached):
                continue
            states[i] = reached
            if len(_ids(decoder, rows[i], [plans[i]])[0]) < decoder.length:
                going.append(i)
        waiting = going
    return [Answer(_write(row, plan), True, count) for row, plan, count in zip(rows, plans, tokens, strict=True)]


def _space(row: Row) -> StateSpace:
    return StateSpace(parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"])))


def _write(row: Row, plan: Sequence[Action]) -> str:
    return prompts.render_completion(plan, row["prompt_style"], row["domain_pddl"])


class _Asked(NamedTuple):
    """What the model is given, and the objects that its names stand for, where these are others."""

    row: Row
    names: Mapping[str, str]


def _from(row: Row, state: frozenset[Any], done: int, numbered: bool) -> _Asked:
    """Return the problem from the state behind some actions."""
    if not done:
        return _Asked(row, {})
    later, names = row | {"problem_pddl": from_state(row["problem_pddl"], state)}, {}
    if numbered:
        problem, numbers = numbered_problem(later, random.Random(f"{row['id']}/{done}"))
        later, names = later | {"problem_pddl": problem}, inverse(numbers)
    prompt = prompts.render_prompt(row["domain_pddl"], later["problem_pddl"], row["prompt_style"])
    return _Asked({name: value for name, value in later.items() if name != "messages"} | {"prompt": prompt}, names)


def _ids(decoder: Decoder, row: Row, plans: Sequence[Sequence[Action]]) -> list[list[int]]:
    """Return the tokens of plans as completions of a row, without the one that ends them."""
    rows = [row | {"completion": _write(row, plan)} for plan in plans]
    return [ids[:-1] for ids in data.encode_completions(decoder.tokenizer, rows, decoder.template)]
