"""PPO on a GPU or TPU, beside what the device could do by its data sheet, beside its compiler, and beside TRL.

    python benchmarks/accelerator.py --all --minutes 10              # four models, with TRL (extra test)
    python benchmarks/accelerator.py --workload pythia-160m --vs-trl
    python benchmarks/accelerator.py --workload tiny --peak-tflops 0.1 --bandwidth-gb 20    # anywhere

Random weights, bfloat16, 64 rows of 512-token prompts, 53 tokens sampled for each; all devices that JAX sees. What is
timed is `train.train_step`, as in ppo_update.py, in turns with TRL's update on the same GPU. Without a GPU or TPU
`--all` takes models of the same kinds in tiny sizes.

With `--minutes` every workload has an equal share of the time that is left when it begins, and up to half of that time
until each contestant has one turn that counts; what is cut off keeps its turns. After every turn two files in the
folder `--out` are replaced: accelerator.json, and accelerator.md with the table that is printed at the end. Beside them
lies what contestants wrote to standard error. One that fails is recorded with its last error, and the others go on. Of
a contestant there are:

- `first_update_s`: seconds from the start of its process to the end of its first update; both start together;
- `over_jaxppo`: how many times as long as jaxppo an update takes, the median over the turns, and its range;
- `mfu_update`: operations of the update (profiling/flops.py: padding counts, what is recomputed does not) per second,
  over the peak for bfloat16; this, sampling and the compiler's figures are of jaxppo alone;
- `decode_tokens_per_s`, and `decode_limit_tokens_per_s` where the prompts are read at the peak and every step then
  reads weights and cache once at the memory's bandwidth;
- `peak_bytes` of a device as measured, and `compiler_peak_bytes`: what lives when its greediest program starts, and
  what the compiler adds for results and temporaries. The CPU measures none.
"""

import argparse
import dataclasses
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from decode import bytes_read
from ppo_update import set_precision
from turns import Clock, Contestant, ContestantFailed, OutOfTime
from workloads import WORKLOADS, Workload, shrink, train_config, write_inputs

from jaxppo.profiling import targets

HERE = Path(__file__).resolve().parent
ALL = ("pythia-160m", "smollm2-135m", "qwen3-0.6b", "pythia-1b")
"""What `--all` measures. The first has published figures to compare with; the last takes longest."""

WARM_UP = 1
"""Updates before the first that counts: they compile. A second would cost TRL's larger models their only turns."""

USED_TIME = 0.98
"""Of the minutes given; the rest is for ending processes that hold a lot of memory."""

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


def jaxppo_contestant(work: Workload) -> None:
    """This package; reports with every turn what only it knows."""
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
        prefetched = None
        reference = learner.reference(state, start.policy)
        del start
        programs = Programs(learner)
        models = flops.of_models(learner.model, learner.value_model, learner.models_of(state))

        def update(number: int) -> dict[str, Any]:
            nonlocal state, prefetched
            step = train.train_step(training, state, prefetched, number)
            state = jax.block_until_ready(step.state)
            prefetched = step.prefetched
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
            return {
                "rollout_s": step.record["time/rollout_s"],
                "update_s": step.record["time/update_s"],
                "update_flop": flops.learning(setup.config, models, shapes),
                "prompts_flop": flops.forward(models.policy, prompts),
                "peak_bytes": stats.get("peak_bytes_in_use"),
                "programs": programs.found,
            }

        clock = Clock()
        with setup.training(reference) as training:
            clock.ready()
            for number in itertools.count():
                clock.done(**update(number))


@dataclass(slots=True)
class Result:
    """What is known of a contestant so far."""

    turns: list[dict[str, Any]] = field(default_factory=list)  # what it said of each
    start_s: float | None = None
    error: str | None = None

    @property
    def counted(self) -> list[float]:
        """Seconds of the turns that count."""
        return [turn["seconds"] for turn in self.turns[WARM_UP:]]


def summary(
    name: str, work: Workload, results: dict[str, Result], peak: Peaks, state: str
) -> dict[str, Any]:
    """A case as it is written down; `state` says whether it is done."""
    contestants: dict[str, dict[str, Any]] = {}
    for contestant, result in results.items():
        record = _record(result)
        if contestant == "jaxppo":
            record |= _own_figures(work, result.turns[WARM_UP:], peak)
        else:
            record |= _comparison(result.counted, results["jaxppo"].counted)
        contestants[contestant] = record
    return {
        "workload": name,
        "state": state,
        "sizes": dataclasses.asdict(work),
        "contestants": contestants,
    }


def _record(result: Result) -> dict[str, Any]:
    """The figures that all contestants have."""
    record: dict[str, Any] = {
        "error": result.error,
        "s_per_update": None,
        "s_per_update_all": [round(seconds, 4) for seconds in result.counted],
        "s_warm_up": [round(turn["seconds"], 4) for turn in result.turns[:WARM_UP]],
        "first_update_s": None,
        "peak_bytes": None,
    }
    if result.counted:
        record["s_per_update"] = round(statistics.median(result.counted), 4)
    if result.turns and result.start_s is not None:
        record["first_update_s"] = round(result.start_s + result.turns[0]["seconds"], 1)
        record["peak_bytes"] = result.turns[-1]["peak_bytes"]
    return record


def _comparison(seconds: list[float], own: list[float]) -> dict[str, Any]:
    """The median ratio to jaxppo, and its range, over the turns that both have."""
    # Whoever comes first has a turn more where time or a failure ended the case.
    ratios = [other / mine for other, mine in zip(seconds, own, strict=False)]
    if not ratios:
        return {"over_jaxppo": None, "over_jaxppo_range": None}
    return {
        "over_jaxppo": round(statistics.median(ratios), 3),
        "over_jaxppo_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def _own_figures(work: Workload, turns: Sequence[dict[str, Any]], peak: Peaks) -> dict[str, Any]:
    """What only jaxppo reports: the parts of an update, over what the device could do, and its programs' memory."""
    if not turns:
        return {}
    rollout_s = statistics.median(turn["rollout_s"] for turn in turns)
    update_s = statistics.median(turn["update_s"] for turn in turns)
    seconds = statistics.median(turn["seconds"] for turn in turns)
    last, tokens = turns[-1], work.batch * work.response
    figures: dict[str, Any] = {
        "samples_per_s": round(work.batch / seconds, 3),
        "rollout_s": round(rollout_s, 4),
        "update_s": round(update_s, 4),
        "update_tflop": last["update_flop"] / 1e12,
        "update_tflop_per_s": last["update_flop"] / 1e12 / update_s,
        "mfu_update": None,
        "decode_tokens_per_s": round(tokens / rollout_s, 1),
        "decode_limit_tokens_per_s": None,
        "compiler_peak_bytes": max(map(_peak, last["programs"].values())),
        "programs": last["programs"],
    }
    if peak.flops is not None:
        figures["mfu_update"] = figures["update_tflop_per_s"] * 1e12 / peak.flops
    if peak.flops is not None and peak.bandwidth is not None:
        limit = last["prompts_flop"] / peak.flops + bytes_read(work) / peak.bandwidth
        figures["decode_limit_tokens_per_s"] = round(tokens / limit, 1)
    return figures


def _peak(program: dict[str, int]) -> int:
    """Bytes on a device while a program runs: what lives already, results that have no place there yet, temporaries."""
    return (
        program["held_bytes"]
        + program["output_bytes"]
        - program["alias_bytes"]
        + program["temp_bytes"]
    )


def devices(deadline: float | None) -> tuple[str, str, int]:
    """Platform, kind and number of JAX's devices; by another process, as this one should not hold their memory."""
    code = "import jax; d = jax.devices(); print('\\n'.join([d[0].platform, d[0].device_kind, str(len(d))]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=None if deadline is None else deadline - time.monotonic(),
    )
    platform, kind, count = done.stdout.splitlines()[-3:]
    return platform, kind, int(count)


def versions() -> dict[str, str | None]:
    """Installed releases of what is compared; None: not installed."""
    found: dict[str, str | None] = {}
    for package in ("jax", "torch", "trl"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


class Limits(NamedTuple):
    """Until when a case may go on, in the seconds of `time.monotonic`; None: as long as it takes."""

    share: float | None = None
    first_result: float | None = None  # while a contestant has no turn that counts


def limits(deadline: float | None, cases_left: int) -> Limits:
    """The limits of the first of the cases that are left."""
    if deadline is None:
        return Limits()
    now = time.monotonic()
    left = deadline - now
    # Equal shares that are all too short would give no result at all.
    return Limits(now + left / cases_left, now + left / min(cases_left, 2))


class Case(NamedTuple):
    """One workload and the commands of the contestants that take turns on it."""

    name: str
    work: Workload
    commands: dict[str, Sequence[str]]


def case_of(name: str, work: Workload, vs_trl: bool, platform: str) -> Case:
    """The processes that are to be started for a workload."""
    sizes = work.to_json()
    commands: dict[str, Sequence[str]] = {"jaxppo": [sys.executable, __file__, "--sizes", sizes]}
    if vs_trl:
        commands["trl"] = [sys.executable, str(HERE / "trl_update.py"), sizes, platform]
    return Case(name, work, commands)


def measure(
    case: Case,
    updates: int,
    limit: Limits,
    peak: Peaks,
    out: Path,
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Let the contestants take turns until each has its updates, or the time is over; save after each turn."""
    results = {contestant: Result() for contestant in case.commands}
    running: dict[str, Contestant] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            for name, command in case.commands.items():
                log = out / f"{case.name}-{name}.log"
                running[name] = Contestant(name, command, log, Path(folder))
            for turn in range(1 + WARM_UP + updates):
                for name, contestant in list(running.items()):
                    has_results = all(results[other].counted for other in running)
                    deadline = limit.share if has_results else limit.first_result
                    try:
                        if turn == 0:
                            contestant.wait_until_ready(deadline)
                            results[name].start_s = contestant.start_s
                        else:
                            _take_turn(contestant, results[name], deadline)
                    except ContestantFailed as failure:
                        results[name].error = str(failure)
                        running.pop(name).close()
                    save(summary(case.name, case.work, results, peak, "running"))
            state = "done"
        except OutOfTime:
            state = "out of time"
        finally:
            for contestant in running.values():
                contestant.close()
    save(summary(case.name, case.work, results, peak, state))


def _take_turn(contestant: Contestant, result: Result, deadline: float | None) -> None:
    """One turn; none is begun that would not end in time, so that the next case has that time."""
    expected_s = result.counted[-1] if result.counted else 0
    if deadline is not None and time.monotonic() + expected_s > deadline:
        raise OutOfTime(f"{contestant.name} would not be done in time")
    result.turns.append(contestant.turn(deadline))
    print(
        f"{contestant.name} turn {len(result.turns)}: {result.turns[-1]['seconds']:.3f} s",
        file=sys.stderr,
        flush=True,
    )


COLUMNS = (
    "workload",
    "contestant",
    "turns",
    "s per update",
    "over jaxppo",
    "MFU of the update",
    "tokens/s of sampling",
    "peak GiB",
    "s to the first update",
    "remark",
)


def table(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    named = [f"{package} {version}" for package, version in report["versions"].items() if version]
    lines = [
        f"{report['devices']} x {report['device']}, {', '.join(named)}",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for case in report["cases"]:
        state = "" if case["state"] == "done" else case["state"]
        for name, record in case["contestants"].items():
            remark = "; ".join(filter(None, (state, record["error"])))
            cells = [case["workload"], name, *_cells(record), remark.replace("|", "\\|")]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(record: dict[str, Any]) -> list[str]:
    """Turns to first update, as text; empty where nothing is known."""
    seconds, ratio, mfu = (record.get(key) for key in ("s_per_update", "over_jaxppo", "mfu_update"))
    tokens, limit = (
        record.get(key) for key in ("decode_tokens_per_s", "decode_limit_tokens_per_s")
    )
    peak_bytes, first_s = record["peak_bytes"], record["first_update_s"]
    cells = [str(len(record["s_per_update_all"]))]
    cells.append("" if seconds is None else f"{seconds:.3f}")
    least, most = record.get("over_jaxppo_range") or (0, 0)
    cells.append("" if ratio is None else f"{ratio:.2f} [{least:.2f}, {most:.2f}]")
    cells.append("" if mfu is None else f"{mfu:.1%}")
    of_limit = "" if limit is None else f" of {limit:,.0f}"
    cells.append("" if tokens is None else f"{tokens:,.0f}{of_limit}")
    cells.append("" if peak_bytes is None else f"{peak_bytes / 2**30:.1f}")
    cells.append("" if first_s is None else f"{first_s:.0f}")
    return cells


def write(report: dict[str, Any], out: Path) -> None:
    """Replace both files; a process that is killed meanwhile leaves the ones before."""
    texts = {"accelerator.json": json.dumps(report, indent=1), "accelerator.md": table(report)}
    for name, text in texts.items():
        part = out / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(out / name)


def measure_all(
    cases: Sequence[Case],
    updates: int,
    deadline: float | None,
    peak: Peaks,
    report: dict[str, Any],
    out: Path,
) -> None:
    """Measure one case after the other, each within its share of the time, and keep the files up to date."""
    report["cases"] = [
        summary(case.name, case.work, {name: Result() for name in case.commands}, peak, "not begun")
        for case in cases
    ]
    write(report, out)  # in place of what an earlier run left
    for number, case in enumerate(cases):

        def save(record: dict[str, Any], number: int = number) -> None:
            report["cases"][number] = record
            write(report, out)

        limit = limits(deadline, len(cases) - number)
        measure(case, updates, limit, peak, out, save)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help=f"{', '.join(ALL)}, with TRL")
    what.add_argument("--workload", choices=WORKLOADS, action="append")
    what.add_argument("--sizes", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, help="end in time with what there is by then")
    parser.add_argument(
        "--updates", type=int, default=5, help="updates that count, of each contestant"
    )
    parser.add_argument("--vs-trl", action="store_true", help="beside TRL 1.12 (extra test)")
    parser.add_argument(
        "--parts",
        type=int,
        help="micro-batches of TRL's update, in place of the workload's",
    )
    parser.add_argument(
        "--peak-tflops", type=float, help="of one device in bfloat16, in place of what is known"
    )
    parser.add_argument(
        "--bandwidth-gb", type=float, help="GB/s of one device's memory, in place of what is known"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/accelerator"), help="folder of the results"
    )
    return parser


def main() -> None:
    """Parse the arguments, measure, write, print."""
    began = time.monotonic()
    args = make_parser().parse_args()
    if args.sizes is not None:
        jaxppo_contestant(Workload(**json.loads(args.sizes)))
        return
    # So that contestants are ended by `finally`, and the table is printed, where somebody ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    deadline = None if args.minutes is None else began + 60 * args.minutes * USED_TIME
    vs_trl = args.vs_trl or args.all
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or nothing is left for TRL
    if vs_trl and "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # its newer name
        # By default JAX takes up to three quarters, and learns from as many rows at once as these hold.
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    platform, kind, count = devices(deadline)
    flops, bandwidth = peaks(kind)
    flops = flops if args.peak_tflops is None else args.peak_tflops * 1e12
    bandwidth = bandwidth if args.bandwidth_gb is None else args.bandwidth_gb * 1e9
    peak = Peaks(flops and count * flops, bandwidth and count * bandwidth)
    cases = []
    for name in ALL if args.all else args.workload:
        work = WORKLOADS[name]
        if args.all and platform == "cpu":
            name, work = f"{name}-tiny", shrink(work)
        if args.parts is not None:
            work = dataclasses.replace(work, parts=args.parts)
        cases.append(case_of(name, work, vs_trl, platform))
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "device": kind,
        "devices": count,
        "versions": versions(),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "minutes": args.minutes,
        "cases": [],
    }
    try:
        measure_all(cases, args.updates, deadline, peak, report, args.out)
    finally:
        print(table(report), end="", flush=True)
    if not any(_measured(case) for case in report["cases"]):
        raise SystemExit(f"no update was measured; the reasons are in {args.out}")


def _measured(case: dict[str, Any]) -> bool:
    return any(record["s_per_update_all"] for record in case["contestants"].values())


if __name__ == "__main__":
    main()
