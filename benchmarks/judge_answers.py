"""Processor seconds for judging many recorded answers with `python -m jaxppo.evaluate --plans --pddl_dir`.

    python benchmarks/judge_answers.py --results results --pddl_dir instances

PlanBench's result files are repeated until there are enough answers, each copy as a model of its own and with a comment
of its own in every plan, so that no text comes from the cache; plans that are equal in two copies are carried out once,
as they are in a real collection. The process is a new one, its start included. The last line is one JSON object.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write_copies(results: Path, folder: Path, answers: int) -> int:
    """Write copies of all result files; returns how many answers they hold."""
    sources = {
        path.relative_to(results): json.loads(path.read_text())
        for path in sorted(results.rglob("*.json"))
    }
    copy = written = 0
    while written < answers:
        for path, content in sources.items():
            plans = [
                one | {"extracted_llm_plan": _marked(one, copy)} for one in content["instances"]
            ]
            target = folder / path.parent.with_name(f"{path.parent.name}-{copy}") / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(content | {"instances": plans}))
            written += len(plans)
        copy += 1
    return written


def _marked(instance: dict, copy: int) -> str:
    return f"; copy {copy}\n{instance['extracted_llm_plan']}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--pddl_dir", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=30_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = write_copies(args.results, folder / "results", args.answers)
        command = [sys.executable, "-m", "jaxppo.evaluate", "--plans", str(folder / "results")]
        command += ["--pddl_dir", str(args.pddl_dir), "--output_dir", str(folder / "judged")]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        content = json.loads((folder / "judged" / "eval.json").read_text())
    measured = {
        "answers": answers,
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "wall_s": round(wall, 1),
    }
    measured |= {
        "judged": content["answers"]["judged"],
        "compared": content["recorded"]["compared"],
    }
    print(
        json.dumps(
            measured | {"equal": content["recorded"]["equal"], "maxrss_mib": used.ru_maxrss // 1024}
        )
    )


if __name__ == "__main__":
    main()
