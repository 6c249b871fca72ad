"""Sets are ordered by hashes, which differ between processes: what is drawn and obfuscated must not."""

import os
import subprocess
import sys

from tests import ROOT

SCRIPT = """
import random
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.transform.renaming import OBFUSCATION_STYLES, choose_words

rng = random.Random(1)
for name, module in DOMAINS.items():
    text = module.generate_problem(4, rng, name)
    for style in OBFUSCATION_STYLES:
        print(text, choose_words(module.pddl, module.names, style, rng))
"""


def test_problems_and_obfuscations_are_the_same_in_every_process():
    """Renaming, permuting and solving: `test_stream`, whose rows come from other processes."""
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1 and outputs != {""}
