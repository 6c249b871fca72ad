"""A decoder that looks at the state of the problem while a plan is written; for evaluation alone.

The model writes a plan, its first action is done, and the model is asked again from the state after it, until the goal
holds. Each prompt is one more problem of the kind that the model knows: where objects are numbered as the prompt
mentions them, they get new numbers. The decoder knows the domain and sees when the goal holds, which a plain model does
not: a result that uses it has to say so.

Source: regrounding of SymTED, arXiv:2508.07743 (2025).
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from jaxppo import data
from jaxppo.data import Row
from jaxppo.errors import DataError
from jaxppo.evaluate.decoding import Decoder
from jaxppo.evaluate.predictions import Prediction
from jaxppo.planning import parse_domain, parse_problem, prompts
from jaxppo.planning.datasets.renamed_rows import is_numbered, numbered_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.walk import StateSpace
from jaxppo.planning.transform.renaming import inverse, rename_plan
from jaxppo.planning.transform.restart import from_state
from jaxppo.types import Params


def decode_regrounded(
    decoder: Decoder,
    params: Params,
    rows: Sequence[Row],
    max_prompt_length: int | None,
    seed: int = 0,
) -> list[Prediction]:
    """Write a plan for each row.

    Args:
        decoder: completes prompts.
        params: of the language model.
        rows: planning problems whose prompts are of a built-in style.
        max_prompt_length: in tokens; None: any number.
        seed: number of the model, noted in its predictions.

    Raises:
        DataError: a prompt is not what its style makes of the problem.
        UnsupportedPddlError: a problem goes beyond STRIPS.
    """
    rollouts = [_PlanRollout(row) for row in rows]
    # Later prompts are written by the style: the first one
    # has to be of the same kind, or the model would see two.
    for row in rows:
        prompt = prompts.render_prompt(row["domain_pddl"], row["problem_pddl"], row["prompt_style"])
        if row["prompt"] != prompt:
            raise DataError(
                f"decoder: expected the prompt that style {row['prompt_style']} makes of the problem, to write it for "
                f"other states, got another one in row {row['id']}"
            )
    unfinished = [rollout for rollout in rollouts if not rollout.space.is_goal(rollout.state)]
    # All unfinished plans take their next action together, so that the model gets whole batches.
    while unfinished:
        questions = [rollout.ask() for rollout in unfinished]
        encoded = data.encode_prompts(
            decoder.tokenizer,
            questions,
            max_prompt_length,
            template=decoder.template,
        )
        decoder.fit_prompts(max(map(len, encoded)))
        # With a temperature of 0 the draws are not read.
        draws = np.zeros((len(encoded), decoder.length), np.float32)
        completions = decoder(params, encoded, draws)
        still_unfinished = []
        for rollout, completion in zip(unfinished, completions, strict=True):
            rollout.tokens += len(completion.ids)
            goes_on = rollout.advance(completion.text)
            # A plan that would not fit into a completion ends
            # here, as a plain decoder would have cut it.
            if goes_on and rollout.completion_length(decoder) < decoder.length:
                still_unfinished.append(rollout)
        unfinished = still_unfinished
    # The decoder ends each plan itself.
    return [Prediction(rollout.text, True, seed, tokens=rollout.tokens) for rollout in rollouts]


class _PlanRollout:
    """A plan while it is written, and the state that it leads to."""

    def __init__(self, row: Row):
        self.row = row
        domain = parse_domain(row["domain_pddl"])
        self.space = StateSpace(parse_problem(row["problem_pddl"], domain))
        self.state = self.space.start
        self.plan: list[Action] = []
        self.tokens = 0
        self._is_numbered = is_numbered(row)
        # {name in the latest prompt: object of the row}, where the names differ
        self._names: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """Return the plan so far, as a completion of the row."""
        return prompts.render_completion(
            self.plan, self.row["prompt_style"], self.row["domain_pddl"]
        )

    def ask(self) -> Row:
        """Return the problem of reaching the goal from the current state."""
        row = self.row
        if not self.plan:
            return row
        problem = from_state(row["problem_pddl"], self.state)
        if self._is_numbered:
            # Row and step alone decide the numbers, so a
            # plan does not depend on the rows beside it.
            rng = random.Random(f"{row['id']}/{len(self.plan)}")
            problem, numbers = numbered_problem(row | {"problem_pddl": problem}, rng)
            self._names = inverse(numbers)
        prompt = prompts.render_prompt(row["domain_pddl"], problem, row["prompt_style"])
        later = row | {"problem_pddl": problem, "prompt": prompt}
        # Messages would be preferred to the prompt, and they are about the first state.
        later.pop("messages", None)
        return later

    def advance(self, completion: str) -> bool:
        """Carry out the first action of a completion; returns whether more actions are needed and possible."""
        parsed = prompts.parse_completion(
            completion, self.row["prompt_style"], self.row["domain_pddl"]
        )
        if not parsed.actions:
            return False
        # Only the first action counts: the model is asked again from the state after it.
        [action] = rename_plan(parsed.actions[:1], self._names)
        self.plan.append(action)
        # An action that cannot be carried out stays in the plan, which is judged as it was written.
        state = self.space.successor(self.state, action)
        if state is None:
            return False
        self.state = state
        return not self.space.is_goal(state)

    def completion_length(self, decoder: Decoder) -> int:
        """Return the tokens of the plan so far, without the one that ends a completion."""
        row = self.row | {"completion": self.text}
        [ids] = data.encode_completions(decoder.tokenizer, [row], decoder.template)
        return len(ids) - 1
