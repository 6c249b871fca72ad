"""Sets are ordered by hashes, which differ between processes: what is drawn, renamed and found must not."""

import os
import subprocess
import sys

from tests import ROOT

SCRIPT = """
import random
from jaxppo.planning import format_action, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS
from jaxppo.planning.solve.search import solve
from jaxppo.planning.transform.renaming import OBFUSCATION_STYLES, obfuscate, permute_atoms, rename_objects
from tests.planning.families import draw_cases

for name, module in DOMAINS.items():
    for size in (4, 5):
        print(module.generate_problem(size, random.Random(size), name))

depots = DOMAINS["depots"]
rng = random.Random(1)
text = depots.generate_problem(4, rng, "p")
print(permute_atoms(text, rng), rename_objects(text, parse_domain(depots.pddl), rng, depots.pools))
for style in OBFUSCATION_STYLES:
    print(obfuscate(depots.pddl, text, [("lift", "me")], style, rng=rng))

rng = random.Random(3)
cases = [(BLOCKSWORLD.pddl, BLOCKSWORLD.generate_problem(n, rng, "p")) for n in (4, 5, 9)]
for family in ("typing and constants", "either, equality, negation"):
    cases += [case[:2] for case in draw_cases(family, rng, 4)]
for domain, text in cases:
    problem = parse_problem(text, parse_domain(domain))
    for optimal in (False, len(problem.objects) < 9):
        plan = solve(problem, optimal=optimal)
        print("plan", " ".join(map(format_action, plan or ())))
"""


def test_problems_renamings_and_plans_are_the_same_in_every_process():
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    (output,) = outputs
    steps = [line.count("(") for line in output.splitlines() if line.startswith("plan")]
    assert sum(steps) > 60
