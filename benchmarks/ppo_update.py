"""Seconds per PPO update on a fixed workload, beside TRL's, Tunix's, and the bare matrix products.

    python benchmarks/ppo_update.py --workload W1 --updates 5
    python benchmarks/ppo_update.py --workload W1 --updates 5 --vs-trl --vs-products
    python benchmarks/ppo_update.py --workload W1 --updates 5 --vs-tunix --tunix-python VENV/bin/python

Contestants take turns (turns.py). What is timed is `train.train_step`, the very function that `python -m jaxppo.train`
calls: sampling, scoring by policy, reference, value and reward model, advantages, all epochs, decoding to text, and
everything else that a run does for an update. The last line is one JSON object: medians over the updates, and ratios as
medians of the ratios turn by turn.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from turns import Turns, compare, serve, take_turns
from workloads import WORKLOADS, Workload, flops, products, train_config, write_inputs

HERE = Path(__file__).resolve().parent
WARM_UP = 2
"""Updates before the first that counts: they compile."""


def set_precision(work: Workload) -> None:
    """Matrix products in fp32 are in full fp32, as torch computes them."""
    import jax

    jax.config.update(
        "jax_default_matmul_precision", "highest" if work.dtype == "float32" else None
    )


def jaxppo_contestant(work: Workload) -> None:
    """This package."""
    import jax

    from jaxppo import train
    from jaxppo.run.folder import Run

    set_precision(work)
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(work, Path(folder))
        config = train_config(work, Path(folder))
        setup, start = train.set_up(
            Run(command="train", config=config, folder=Path(folder) / "run")
        )
        state = setup.learner.init_state(*start)
        reference = setup.learner.reference(state, start.policy)
        del start

        prefetched = None

        def update(number: int) -> None:
            nonlocal state, prefetched
            step = train.train_step(training, state, prefetched, number)
            state = jax.block_until_ready(step.state)
            prefetched = step.prefetched

        with setup.training(reference) as training:
            serve(update)


def products_contestant(work: Workload) -> None:
    """Nothing but the matrix products of an update: a bound for any program that computes them in this dtype."""
    import jax
    import jax.numpy as jnp

    set_precision(work)
    dtype = jnp.dtype(work.dtype)
    shapes = products(work)
    operands = {}
    for number, (shape, _) in enumerate(shapes):
        b, m, k, n = shape
        left, right = jax.random.split(jax.random.key(number))
        operands[shape] = (
            jax.random.normal(left, (b, m, k), dtype),
            jax.random.normal(right, (b, k, n), dtype),
        )
    multiply = jax.jit(jnp.matmul)

    def update(step: int) -> None:
        del step
        for shape, times in shapes:
            x, y = operands[shape]
            for _ in range(times):
                multiply(x, y).block_until_ready()

    serve(update)


CONTESTANTS = {"jaxppo": jaxppo_contestant, "products": products_contestant}


def commands_of(args: argparse.Namespace, work: Workload) -> dict[str, list[str]]:
    """How the process of each contestant is started."""
    ours = lambda name: [sys.executable, __file__, "--contestant", name, "--sizes", work.to_json()]  # noqa: E731
    commands = {"jaxppo": ours("jaxppo")}
    if args.vs_trl:
        commands["trl"] = [sys.executable, str(HERE / "trl_update.py"), work.to_json()]
    if args.vs_tunix:
        commands["tunix"] = [args.tunix_python, str(HERE / "tunix_update.py"), work.to_json()]
    if args.vs_products:
        commands["products"] = ours("products")
    return commands


def summary(name: str, work: Workload, results: Turns) -> dict[str, object]:
    """The JSON line."""
    ours = results["jaxppo"]
    compared = compare(results, "jaxppo")
    seconds = compared.pop("jaxppo_s")
    assert isinstance(seconds, float)
    return {
        "workload": name,
        "updates": len(ours),
        "s_per_update": seconds,
        "s_per_update_all": [round(turn["seconds"], 4) for turn in ours],
        "samples_per_s": round(work.batch / seconds, 3),
        "maxrss_mib": compared.pop("jaxppo_maxrss_mib"),
        "gflop": round(flops(work) / 1e9, 1),
        "gflop_per_s": round(flops(work) / 1e9 / seconds, 1),
        **compared,
    }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument(
        "--updates", type=int, default=5, help="updates that count, of each contestant"
    )
    parser.add_argument("--vs-trl", action="store_true", help="beside TRL 1.12 (extra test)")
    parser.add_argument(
        "--vs-tunix", action="store_true", help="beside Tunix 0.1.7, in an environment of its own"
    )
    parser.add_argument(
        "--tunix-python", default=sys.executable, help="Python of the environment with google-tunix"
    )
    parser.add_argument(
        "--vs-products", action="store_true", help="beside the bare matrix products"
    )
    for field in dataclasses.fields(Workload):
        kind = str if field.name == "dtype" else int
        parser.add_argument(f"--{field.name}", type=kind, help="in place of the workload's")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant is not None:
        CONTESTANTS[args.contestant](Workload(**json.loads(args.sizes)))
        return
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(Workload)}
    changed = {name: value for name, value in given.items() if value is not None}
    work = dataclasses.replace(WORKLOADS[args.workload], **changed)
    results = take_turns(commands_of(args, work), args.updates, WARM_UP)
    print(json.dumps(summary(args.workload, work, results) | changed), flush=True)


if __name__ == "__main__":
    main()
