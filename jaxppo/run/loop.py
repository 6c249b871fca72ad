"""The loop around the steps of a run: resume, step, evaluate, log, save, stop; one for PPO, SFT and reward models."""

import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from jaxppo.config import LoopConfig
from jaxppo.config.sources import flatten
from jaxppo.parallel import processes
from jaxppo.run import activity, headline, preemption
from jaxppo.run.checkpoints import EMPTY_HOST_STATE, Checkpoints, is_whole
from jaxppo.run.console import ProgressView
from jaxppo.run.folder import METRICS_FILE, SAMPLES_FILE, Run, changed_settings, check_settings
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.metrics import with_old_names
from jaxppo.run.preemption import Preempted
from jaxppo.types import HostState, TrainState


class StepOutput(NamedTuple):
    """One finished step."""

    state: TrainState
    record: dict[str, Any]  # for metrics.jsonl
    host: HostState = EMPTY_HOST_STATE
    samples: Sequence[dict[str, Any]] = ()  # for samples.jsonl, and shown; none where none are due
    noted: Sequence[dict[str, Any]] = ()  # for samples.jsonl alone
    watched: Any = None  # for `Steps.watch`


class ResumableRows(Protocol):
    """Rows that are read as the steps come, and go on where a checkpoint says."""

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what is kept in a checkpoint after `step` steps, as JSON."""
        ...

    def load_state_dict(self, step: int, state: dict[str, Any] | None) -> None:
        """Go on after `step` steps; None: the checkpoint has no such state."""
        ...


class Steps(NamedTuple):
    """The steps of a run, and how they are shown."""

    total: int  # of the whole run
    step: Callable[[TrainState, HostState, int], StepOutput]  # state, its part on the host, number from 0
    evaluate: Callable[[TrainState], dict[str, float]]  # what an evaluation adds to the record of a step
    meta: dict[str, Any]  # from `Run.meta`
    title: str  # for the view
    header: str  # the run in a line, for the view
    stages: tuple[str, ...] = ()  # of the whole command, for the view
    is_over: Callable[[dict[str, Any]], bool] = lambda record: False  # the run cannot go on after this record
    watch: Callable[[StepOutput], None] = lambda output: None  # warns, or raises where the run cannot go on
    old_metric_names: bool = False  # log each record under the names of TRL 0.11, too
    show: Callable[[ProgressView, Sequence[dict[str, Any]]], None] | None = None  # samples; None: the run has none
    # What a resumed run does with a restored state whose checkpoint had other values of these settings.
    change: Callable[[TrainState, Collection[str]], TrainState] = lambda state, names: state
    rows: ResumableRows | None = None  # None: what a step learns from depends on nothing but its number


class TrainingLoop:
    """Carry out the steps of a run from its last checkpoint on.

    A checkpoint is written

    - when `LoopConfig.saves_at` says so: every `save_steps`, after the last step, and after an evaluation that may make
      it the best one;
    - before the run ends early. That is at the next look after SIGTERM or Ctrl-C, when a step or its evaluation fails,
      and after a record with which the run cannot go on. Saved is the last finished step, unless it is already.

    A record is logged before its step is saved: a log may be ahead of the checkpoints, and resuming cuts it back.

    Args:
        run: its folder gets `metrics.jsonl`, `samples.jsonl` and `checkpoints/`.
        config: when to evaluate and to save.
        steps: what to do.
        state: before the first step, on the devices; its place is taken by that of the last checkpoint.
        host: before the first step.
    """

    def __init__(
        self, run: Run, config: LoopConfig, steps: Steps, state: TrainState, host: HostState = EMPTY_HOST_STATE
    ):
        self._run, self._config, self._steps = run, config, steps
        best, greater = config.best_metric, config.greater_is_better
        self._checkpoints = Checkpoints(run.folder / "checkpoints", config.save_total_limit, best, greater)
        if processes.on_first(lambda: self._checkpoints.steps):
            state, host = self._checkpoints.resume(state, run.console.warn, host)
        self._saved, self._record = int(state.step), {}
        self.start = self._saved
        if self.start:
            processes.on_first(self._check_settings)
            state = steps.change(state, self._changed())
            if steps.rows is not None:
                rows = processes.on_first(lambda: self._checkpoints.read_meta(self.start).get("rows"))
                steps.rows.load_state_dict(self.start, rows)
        run.keep_settings()
        if host.prefetched is not None:
            host = host._replace(prefetched=self._placed(host.prefetched))
        self._state = state
        self._host = host  # of the last finished step

    def run(self) -> tuple[TrainState, dict[str, Any]]:
        """Take all steps that are left.

        Returns:
            The state after them, and what a checkpoint of it says.

        Raises:
            Preempted: the run was asked to stop.
            Exception: whatever a step or an evaluation has failed with; the last finished step is saved.
        """
        first, state = processes.is_first(), self._state
        del self._state  # the first step takes over its memory
        self._run.trackers.begin(self.start)
        with (
            self._checkpoints,
            JsonlLog(self._run.folder / METRICS_FILE, enabled=first) as metrics,
            JsonlLog(self._run.folder / SAMPLES_FILE, enabled=first and self._steps.show is not None) as samples,
            self._progress() as progress,
        ):
            metrics.truncate_after(self.start)
            samples.truncate_after(self.start)
            if first:
                self._fill(metrics)
            if self.start and first:
                progress.recall(map(headline.numbers, read_metrics(self._run.folder / METRICS_FILE)))
            progress.doing("compiling")
            for number in range(self.start, self._steps.total):
                output = self._step(state, number, metrics, progress)
                state = output.state
                self._finish(output, metrics, samples, progress)
        preemption.keep_in_mind(is_unsaved=False)
        self._print_best()
        record = processes.on_first(lambda: read_metrics(self._run.folder / METRICS_FILE)[-1])
        return state, self._meta(record)

    def _check_settings(self) -> None:
        """Raise a `ConfigError` unless the checkpoint has the settings of this run, whatever `config.yaml` says."""
        run, before = self._run, self._checkpoints.read_meta(self.start)["config"]
        check_settings(before, self._steps.meta["config"], run.config, f"checkpoint {self.start} in {run.folder}")

    def _placed(self, batch: dict[str, Any]) -> dict[str, Any] | None:
        """Put the batch of a checkpoint that was sampled ahead on the devices; None where it has to be sampled anew."""
        changed = self._changed() - flatten(self._config).keys()
        if not changed:
            return self._run.parallel.put(batch, 0)
        self._run.console.warn(
            f"the batch of update {self.start + 1} was sampled under other settings ({', '.join(sorted(changed))}): it "
            "is sampled anew"
        )
        return None

    def _changed(self) -> set[str]:
        """Return the settings whose values are others than those of the checkpoint."""
        before = processes.on_first(lambda: self._checkpoints.read_meta(self.start)["config"])
        return set(changed_settings(before, self._steps.meta["config"], self._run.config))

    def _fill(self, metrics: JsonlLog) -> None:
        """Fill gaps in the log of a resumed run with the records that its checkpoints hold, and say so."""
        missing = metrics.missing(self.start)
        if not missing:
            return
        known = self._checkpoints.records()
        filled = [self._logged(known[step]) for step in missing if step in known]
        metrics.insert(filled)
        self._run.console.warn(
            f"{metrics.path}: expected the records of updates 1 to {self.start}, {len(missing)} are missing, the first "
            f"that of update {missing[0]}; {len(filled)} are filled in from checkpoints, the others are lost"
        )

    def _step(self, state: TrainState, number: int, metrics: JsonlLog, progress: ProgressView) -> StepOutput:
        """Take a step and evaluate where that is due; save before anything ends the run here."""
        last, done = self._steps.total, number
        preemption.keep_in_mind(is_unsaved=self._saved < done)
        try:
            preemption.check()
            self._checkpoints.check()
            output = self._steps.step(state, self._host, number)
            state = output.state
            record = output.record
            done = number + 1
            self._host = output.host
            preemption.keep_in_mind(is_unsaved=True)
            self._record = record
            if self._config.evaluates_at(done, last):
                progress.doing("evaluation")
                record |= self._steps.evaluate(state)
            self._config.check_record(record, last)
            return output
        except Exception as error:
            stopped = isinstance(error, Preempted)
            # A step that failed half-way may have given the memory of the state away.
            if self._saved < done and (stopped or is_whole(state)):
                if done > number:
                    self._run.console.warn(f"update {done} is saved without its evaluation, which is not made up for")
                    self._log(self._record, metrics)
                with activity.shown("saving"):
                    self._save(done, state)
            if not stopped and processes.is_alone():
                preemption.check()  # Ctrl-C also ends what a reward function has started, which then fails
            raise

    def _finish(self, output: StepOutput, metrics: JsonlLog, samples: JsonlLog, progress: ProgressView) -> None:
        """Log a step, save it where that is due, look at it, show it."""
        steps, record = self._steps, output.record
        done = int(record["step"])
        self._log(record, metrics)
        for sample in (*output.samples, *output.noted):
            samples.append(sample)
        if output.samples and steps.show is not None:
            self._run.trackers.samples(done, output.samples)
            steps.show(progress, output.samples)
        if self._config.saves_at(done, steps.total) or steps.is_over(record):
            with activity.shown("saving"):
                self._save(done, output.state)
        steps.watch(output)
        progress.update(done, **headline.numbers(record))

    def _log(self, record: dict[str, Any], metrics: JsonlLog) -> None:
        logged = self._logged(record)
        metrics.append(logged)
        self._run.trackers.log(int(record["step"]), logged)

    def _logged(self, record: dict[str, Any]) -> dict[str, Any]:
        return with_old_names(record) if self._steps.old_metric_names else record

    def _save(self, done: int, state: TrainState) -> None:
        self._run.trackers.flush()
        rows = {} if self._steps.rows is None else {"rows": self._steps.rows.state_dict(done)}
        self._checkpoints.save(done, state, self._meta(self._record) | rows, self._record, self._host)
        self._saved = done

    def _meta(self, record: dict[str, Any]) -> dict[str, Any]:
        episode = {"episode": record["episode"]} if "episode" in record else {}
        return self._steps.meta | {"step": record["step"], **episode, "metrics": record}

    def _progress(self) -> AbstractContextManager[ProgressView]:
        steps = self._steps
        return self._run.console.progress(
            steps.total, steps.title, self.start, header=steps.header, stages=steps.stages, hint=headline.hint
        )

    def _print_best(self) -> None:
        """Say which checkpoint is the best one, where one is chosen, and how to get its models."""
        step = self._checkpoints.best_step
        if step is not None:
            command = f"python -m jaxppo.export --run_dir {shlex.quote(str(self._run.folder))} --step {step}"
            self._run.console.print(f"best checkpoint: update {step}; {command} gives its models")
