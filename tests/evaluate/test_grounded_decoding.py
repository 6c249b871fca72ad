"""The decoder that looks at the state, with a planner in the place of the model."""

import random
import re

import pytest

from jaxppo import data
from jaxppo.errors import DataError
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.grounded_decoding import decode_regrounded
from jaxppo.planning import parse_action, parse_domain, parse_problem, prompts, validate_actions
from jaxppo.planning.datasets.renamed_rows import NUMBERED, numbered_row
from jaxppo.planning.datasets.rows import build_split
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.solve import search
from jaxppo.planning.validate.validator import final_facts

TOKENIZER = data.word_tokenizer()
LENGTH, MOST = 14, 200
ROWS = build_split("test", sizes={3: 4, 4: 3}, seed=0, unique=True)


class Planner:
    """Stands for a model: answers every prompt by a function."""

    tokenizer, length = TOKENIZER, LENGTH
    template = data.make_chat_template(TOKENIZER)

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def fit_prompts(self, longest):
        assert longest <= MOST

    def __call__(self, params, encoded, uniforms):
        assert (len(encoded), LENGTH) == uniforms.shape
        asked = [self.tokenizer.decode(ids) for ids in encoded]
        self.asked += asked
        return [Completion(text, True, text.split()) for text in map(self.answers, asked)]


SHORT = [row for row in ROWS if len(row["reference_plan"]) <= 4]


def state_and_goal(prompt):
    """The facts of a prompt in any order, and its goal."""
    facts, goal = prompt.removeprefix("<init> ").split(" <goal> ")
    return frozenset(facts.split(" ; ")), goal


def test_reground_does_the_first_action_and_asks_again_from_there_until_the_goal_holds():
    rests = {}  # what is left of a reference plan, by each state on its way
    for row in SHORT:
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        plan = [parse_action(action) for action in row["reference_plan"]]
        _, goal = state_and_goal(row["prompt"])
        for step in range(len(plan) + 1):
            facts = frozenset(map(" ".join, final_facts(problem, plan[:step])))
            rests[facts, goal] = prompts.render_completion(plan[step:])
    planner = Planner(lambda prompt: rests[state_and_goal(prompt)])
    answers = decode_regrounded(planner, None, SHORT, MOST)
    for row, answer in zip(SHORT, answers, strict=True):
        assert [f"({step})" for step in answer.text.split(" ; ")] == row["reference_plan"]
    assert len(planner.asked) == sum(len(row["reference_plan"]) for row in SHORT) > len(SHORT) >= 3
    tokens = [len(rests[state_and_goal(prompt)].split()) for prompt in planner.asked]
    assert sum(answer.tokens for answer in answers) == sum(tokens)


class NumberedPlanner(Planner):
    """Solves problems whose objects are numbered as the prompt mentions them, and knows no others."""

    tokenizer = data.word_tokenizer([*TOKENIZER.get_vocab(), *NUMBERED[:4]])
    template = data.make_chat_template(tokenizer)

    def __init__(self):
        super().__init__(self.solve)

    @staticmethod
    def solve(prompt):
        init, goal = (part.strip().split(" ; ") for part in re.split("<init>|<goal>|<plan>", prompt)[1:3])
        blocks = list(dict.fromkeys(re.findall(r"o\d+", prompt)))
        assert blocks == list(NUMBERED[: len(blocks)])
        parts = (" ".join(blocks), *(" ".join(f"({fact})" for fact in facts) for facts in (init, goal)))
        problem = "(define (problem p) (:domain blocksworld) (:objects {}) (:init {}) (:goal (and {})))".format(*parts)
        plan = search.solve(parse_problem(problem, parse_domain(BLOCKSWORLD.pddl)), optimal=True)
        return prompts.render_completion(plan)


def test_reground_numbers_the_objects_of_each_state_anew_where_those_of_the_problem_are_numbered():
    rows = [numbered_row(row, random.Random(row["id"])) for row in SHORT]
    planner = NumberedPlanner()
    for row, answer in zip(rows, decode_regrounded(planner, None, rows, MOST), strict=True):
        plan = prompts.parse_completion(answer.text).actions
        assert validate_actions(row["domain_pddl"], row["problem_pddl"], plan).valid
    assert len(planner.asked) == sum(len(row["reference_plan"]) for row in rows) > len(rows)


@pytest.mark.parametrize(
    ("completion", "plan"),
    [
        ("fly a", "fly a"),  # no action: it is the plan, which is not valid
        ("", ""),  # nothing more to do, the model says
        ("pick-up ; ; x", "pick-up"),  # the first action is read before what cannot be
    ],
)
def test_reground_stops_where_the_model_does_not_go_on(completion, plan):
    planner = Planner(lambda prompt: completion)
    [answer] = decode_regrounded(planner, None, ROWS[:1], MOST)
    assert (answer.text, len(planner.asked)) == (plan, 1)


def test_reground_stops_at_the_most_tokens_of_a_plan():
    up = {"handempty": "pick-up", "holding": "put-down"}
    block, other = list(parse_problem(ROWS[0]["problem_pddl"], parse_domain(BLOCKSWORLD.pddl)).objects)[:2]
    problem = f"(define (problem p) (:domain blocksworld) (:objects {block} {other}) (:init (ontable {block})"
    problem += f" (ontable {other}) (clear {block}) (clear {other}) (handempty)) (:goal (and (on {block} {other}))))"
    row = ROWS[0] | {"problem_pddl": problem, "prompt": prompts.render_prompt(BLOCKSWORLD.pddl, problem)}
    planner = Planner(lambda prompt: f"{up['handempty' if 'handempty' in prompt else 'holding']} {block}")
    [answer] = decode_regrounded(planner, None, [row], MOST)
    assert len(answer.text.split()) == LENGTH  # pick-up, put-down, pick-up ... of 2 words and a `;` each
    assert validate_actions(row["domain_pddl"], problem, prompts.parse_completion(answer.text).actions).goals == 1


def test_reground_refuses_prompts_that_it_could_not_write_for_other_states():
    with pytest.raises(DataError, match=ROWS[0]["id"]):
        decode_regrounded(Planner(lambda prompt: ""), None, [ROWS[0] | {"prompt": "solve it"}], MOST)
