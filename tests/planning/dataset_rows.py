"""Rows of small problems, and data sets of them on disk."""

import random

from jaxppo.planning import execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets.folder import write_dataset
from jaxppo.planning.datasets.rows import make_row
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.solve.search import solve

FILES = {"README.md", "obfuscation.json", "rejected.jsonl", "report.json", "vocabulary.json"}
"""What every data set has beside its splits."""


def row(split, number, domain="gripper", *, problem_pddl=None, domain_pddl=None, plan=None, **others):
    """A row of a problem drawn for it, or of the given one, with a plan found for it, or the given one."""
    domain_pddl = domain_pddl or DOMAINS[domain].pddl
    problem_pddl = problem_pddl or DOMAINS[domain].generate_problem(3, random.Random(f"{split}{number}"), "task")
    plan = plan or solve(parse_problem(problem_pddl, parse_domain(domain_pddl)))
    texts = {"domain_pddl": domain_pddl, "problem_pddl": problem_pddl}
    fields = {"id": f"{domain}-{split}-{number}", "prompt_style": "atoms", "planner": "builtin 1", **others}
    return make_row(domain=domain, split=split, plans=[plan], **texts, **fields)


def problem_of(row):
    return parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))


def plan_of(row):
    """The reference plan, which must be valid."""
    plan = [parse_action(action) for action in row["reference_plan"]]
    assert execute(problem_of(row), plan).valid
    return plan


def write(folder, rows, rejected=(), **others):
    return write_dataset(folder, rows, rejected, **{"title": "Title", "command": "by hand", "use_val": False, **others})
