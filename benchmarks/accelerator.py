"""PPO on a GPU or TPU, beside what the device could do by its data sheet, beside its compiler, and beside TRL.

    python benchmarks/accelerator.py                                          # Pythia-160M and 1B, one after the other
    python benchmarks/accelerator.py --workload pythia-160m --vs-trl          # NVIDIA GPUs; extra test
    python benchmarks/accelerator.py --workload tiny --peak-tflops 0.1 --bandwidth-gb 20    # anywhere

Random weights, bfloat16, 64 rows of 512-token prompts, 53 tokens sampled for each; all devices that JAX sees. What is
timed is `train.train_step`, as in ppo_update.py, in turns with TRL's update on the same GPU. One JSON object a case:

- `mfu_update`: operations of the update (profiling/flops.py: padding counts, what is recomputed does not) per second,
  over the peak for bfloat16;
- `decode_tokens_per_s`, and `decode_limit_tokens_per_s` where the prompts are read at the peak and every step then
  reads weights and cache once at the memory's bandwidth;
- `peak_bytes` of a device as measured, and `compiler_peak_bytes`: what lives when its greediest program starts, and
  what the compiler adds for results and temporaries. The CPU measures none.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from decode import bytes_read
from ppo_update import set_precision
from turns import Turns, compare, serve, take_turns
from workloads import WORKLOADS, Workload, train_config, write_inputs

from jaxppo.profiling import targets

HERE = Path(__file__).resolve().parent
WARM_UP = 2
"""Updates before the first that counts: they compile."""

PROGRAMS = {"generate": "sample_program", "update": "update_program"}
"""The programs whose memory the compiler is asked for, and the attributes of `Learner` that hold them."""


class Peaks(NamedTuple):
    """What a device could do, of those in one process together."""

    flops: float | None  # operations per second in bfloat16
    bandwidth: float | None  # bytes per second from memory


def peaks(kind: str) -> Peaks:
    """Published peaks of one device by the name that JAX has for its kind; None: look them up, and use the flags."""
    chip = next((chip for chip in targets.CHIPS.values() if chip.device_kind == kind), None)
    return Peaks(None, None) if chip is None else Peaks(chip.peak_flops("bfloat16"), chip.bandwidth)


class Programs:
    """Notes what the compiler says of programs, and what lives on a device when they first start."""

    def __init__(self, ppo: Any):
        self.found: dict[str, dict[str, int]] = {}
        for name, attribute in PROGRAMS.items():
            setattr(ppo, attribute, self._noted(name, getattr(ppo, attribute)))

    def _noted(self, name: str, program: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if name not in self.found:
                self.found[name] = {"held_bytes": _held()} | _analysis(program, args)
            return program(*args)

        return call


def _held() -> int:
    """Bytes of all arrays on the first device; arrays that share a buffer count once."""
    import jax

    first = jax.local_devices()[0]
    shards = (
        shard.data
        for array in jax.live_arrays()
        for shard in array.addressable_shards
        if shard.device == first
    )
    return sum({data.unsafe_buffer_pointer(): data.nbytes for data in shards}.values())


def _analysis(program: Any, args: tuple[Any, ...]) -> dict[str, int]:
    """The compiler's figures for one device. The call that follows reads what is compiled here."""
    memory = program.lower(*args).compile().memory_analysis()
    kinds = ("argument", "output", "alias", "temp")
    return {f"{kind}_bytes": int(getattr(memory, f"{kind}_size_in_bytes")) for kind in kinds}


def jaxppo_contestant(work: Workload, notes: Path) -> None:
    """This package; appends a line to `notes` for every update."""
    import jax

    from jaxppo import train
    from jaxppo.profiling import flops
    from jaxppo.run.folder import Run

    set_precision(work)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/xla")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        write_inputs(work, Path(folder))
        config = train_config(work, Path(folder))
        setup, start = train.set_up(
            Run(command="train", config=config, folder=Path(folder) / "run")
        )
        learner = setup.learner
        state = learner.init_state(*start)
        host = setup.initial_host_state()
        reference = learner.reference(state, start.policy)
        del start
        programs = Programs(learner)
        models = flops.of_models(learner.model, learner.value_model, learner.models_of(state))

        def update(number: int) -> None:
            nonlocal state, host
            step = train.train_step(training, state, host, number)
            state = jax.block_until_ready(step.state)
            host = step.host
            sequences = step.trajectories.sequences.input_ids.shape
            shapes = flops.Shapes(
                work.batch,
                work.prompt,
                work.batch,
                work.response,
                work.response,
                sequence_length=sequences[1],
            )
            prompts = flops.Pass(work.batch * work.prompt, work.prompt, read=work.batch)
            stats = jax.local_devices()[0].memory_stats() or {}
            note = {
                "rollout_s": step.record["time/rollout_s"],
                "update_s": step.record["time/update_s"],
                "update_flop": flops.learning(setup.config, models, shapes),
                "prompts_flop": flops.forward(models.policy, prompts),
                "peak_bytes": stats.get("peak_bytes_in_use"),
                "programs": programs.found,
            }
            with notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")

        with setup.training(reference) as training:
            serve(update)


def summary(
    name: str, work: Workload, results: Turns, notes: list[dict[str, Any]], peak: Peaks
) -> dict[str, Any]:
    """The JSON line of a case; `notes` are those of the turns that count."""
    compared = compare(results, "jaxppo")
    seconds = compared.pop("jaxppo_s")
    assert isinstance(seconds, float)
    rollout_s, update_s = (
        statistics.median(note[key] for note in notes) for key in ("rollout_s", "update_s")
    )
    last, tokens = notes[-1], work.batch * work.response
    line: dict[str, Any] = {
        "workload": name,
        "updates": len(notes),
        "s_per_update": seconds,
        "samples_per_s": round(work.batch / seconds, 3),
        "rollout_s": round(rollout_s, 4),
        "update_s": round(update_s, 4),
        "update_tflop": last["update_flop"] / 1e12,
        "update_tflop_per_s": last["update_flop"] / 1e12 / update_s,
        "mfu_update": None,
        "decode_tokens_per_s": round(tokens / rollout_s, 1),
        "decode_limit_tokens_per_s": None,
        "peak_bytes": last["peak_bytes"],
        "compiler_peak_bytes": max(map(_peak, last["programs"].values())),
        "programs": last["programs"],
    }
    if peak.flops is not None:
        line["mfu_update"] = line["update_tflop_per_s"] * 1e12 / peak.flops
    if peak.flops is not None and peak.bandwidth is not None:
        limit = last["prompts_flop"] / peak.flops + bytes_read(work) / peak.bandwidth
        line["decode_limit_tokens_per_s"] = round(tokens / limit, 1)
    return line | compared


def _peak(program: dict[str, int]) -> int:
    """Bytes on a device while a program runs: what lives already, results that have no place there yet, temporaries."""
    return (
        program["held_bytes"]
        + program["output_bytes"]
        - program["alias_bytes"]
        + program["temp_bytes"]
    )


def devices() -> tuple[str, str, int]:
    """Platform, kind and number of JAX's devices; by another process, as this one should not hold their memory."""
    code = "import jax; d = jax.devices(); print('\\n'.join([d[0].platform, d[0].device_kind, str(len(d))]))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    platform, kind, count = done.stdout.splitlines()[-3:]
    return platform, kind, int(count)


def measure(name: str, work: Workload, updates: int, vs_trl: bool, peak: Peaks) -> dict[str, Any]:
    """Let the contestants take turns on one workload."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.jsonl"
        commands: dict[str, Sequence[str]] = {
            "jaxppo": [sys.executable, __file__, "--sizes", work.to_json(), "--notes", str(notes)]
        }
        if vs_trl:
            commands["trl"] = [sys.executable, str(HERE / "trl_update.py"), work.to_json()]
        results = take_turns(commands, updates, WARM_UP)
        lines = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    return summary(name, work, results, lines[WARM_UP:], peak)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", help="default: pythia-160m and pythia-1b"
    )
    parser.add_argument(
        "--updates", type=int, default=5, help="updates that count, of each contestant"
    )
    parser.add_argument("--vs-trl", action="store_true", help="beside TRL 1.12 (extra test)")
    parser.add_argument(
        "--parts",
        type=int,
        default=1,
        help="micro-batches of TRL's update, if it runs out of memory",
    )
    parser.add_argument(
        "--peak-tflops", type=float, help="of one device in bfloat16, in place of what is known"
    )
    parser.add_argument(
        "--bandwidth-gb", type=float, help="GB/s of one device's memory, in place of what is known"
    )
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sizes is not None:
        jaxppo_contestant(Workload(**json.loads(args.sizes)), args.notes)
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or nothing is left for TRL
    platform, kind, count = devices()
    if platform == "cpu" and args.workload is None:
        raise SystemExit("expected a GPU or TPU, JAX sees none; --workload tiny runs anywhere")
    flops, bandwidth = peaks(kind)
    flops = flops if args.peak_tflops is None else args.peak_tflops * 1e12
    bandwidth = bandwidth if args.bandwidth_gb is None else args.bandwidth_gb * 1e9
    peak = Peaks(flops and count * flops, bandwidth and count * bandwidth)
    for name in args.workload or ("pythia-160m", "pythia-1b"):
        work = dataclasses.replace(WORKLOADS[name], parts=args.parts)
        line = measure(name, work, args.updates, args.vs_trl, peak)
        print(json.dumps(line | {"device": kind, "devices": count}), flush=True)


if __name__ == "__main__":
    main()
