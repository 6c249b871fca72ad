"""The loop around the steps of a run: resume, step, evaluate, log, save, stop; one for PPO, SFT and reward models."""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxppo.config import LoopConfig
from jaxppo.config.sources import flatten
from jaxppo.parallel import processes
from jaxppo.run import activity, headline, preemption
from jaxppo.run.checkpoints import Checkpoints, can_be_saved
from jaxppo.run.console import Console
from jaxppo.run.folder import METRICS_FILE, SAMPLES_FILE, Run, changed_settings, check_settings
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.preemption import Preempted
from jaxppo.run.progress import Progress
from jaxppo.types import Prefetched, TrainState


class StepOutput(NamedTuple):
    """One finished step."""

    state: TrainState
    record: dict[str, Any]  # for metrics.jsonl
    prefetched: Prefetched = None
    samples: Sequence[dict[str, Any]] = ()  # for samples.jsonl, and shown; none where none are due
    noted: Sequence[dict[str, Any]] = ()  # for samples.jsonl alone
    watched: Any = None  # for `LoopSteps.watch`


class LoopSteps(NamedTuple):
    """What the loop calls for each step of a run, and how the run is shown."""

    total: int  # of the whole run
    # Gets the state, what was sampled ahead, and the number of the step from 0.
    step: Callable[[TrainState, Prefetched, int], StepOutput]
    # What an evaluation adds to the record of a step
    evaluate: Callable[[TrainState], dict[str, float]]
    meta: dict[str, Any]  # from `Run.meta`
    title: str  # for the view
    header: str  # the run in a line, for the view
    before: Mapping[str, float] = {}  # of an evaluation before the first step, for trackers
    # Whether the run cannot go on after this record.
    is_over: Callable[[dict[str, Any]], bool] = lambda record: False
    # Warns, or raises where the run cannot go on.
    watch: Callable[[StepOutput], None] = lambda output: None
    # Prints samples; None: the run has none.
    show: Callable[[Console, Sequence[dict[str, Any]]], None] | None = None
    # What a resumed run does with a restored state whose
    # checkpoint was saved under other values of these settings.
    change: Callable[[TrainState, Collection[str]], TrainState] = lambda state, names: state


class TrainingLoop:
    """Carry out the steps of a run from its last checkpoint on.

    A checkpoint is written

    - when `LoopConfig.saves_at` says so: every `save_steps`, after the last step, and after an evaluation that may make
      it the best one;
    - before the run ends early: at the next check after SIGTERM or Ctrl-C, when a step or its evaluation fails, and
      after a record with which the run cannot go on. The last finished step is saved, unless it is saved already.

    A record is logged before its step is saved: a log may be ahead of the checkpoints, and resuming cuts it back.

    Args:
        run: its folder gets `metrics.jsonl`, `samples.jsonl` and `checkpoints/`.
        config: when to evaluate and to save.
        steps: what to do.
        state: before the first step, on the devices; its place is taken by that of the last checkpoint.
    """

    def __init__(
        self,
        run: Run,
        config: LoopConfig,
        steps: LoopSteps,
        state: TrainState,
    ):
        self._run = run
        self._config = config
        self._steps = steps
        self._checkpoints = Checkpoints(
            run.folder / "checkpoints",
            config.save_total_limit,
            config.best_metric,
            config.greater_is_better,
        )
        # One answer for all processes, which must go on alike.
        prefetched = None
        if processes.on_first(lambda: self._checkpoints.steps):
            state, prefetched = self._checkpoints.resume(state, run.console.warn)
        self.start = int(state.step)
        self._saved = self.start  # steps done at the latest checkpoint
        self._record: dict[str, Any] = {}  # of the latest step
        if self.start:
            # Settings first: a checkpoint of other settings is
            # refused before it changes any file of the run.
            processes.on_first(self._check_settings)
            state = steps.change(state, self._changed())
        run.keep_settings()
        self._state = state
        # By the latest finished step.
        self._prefetched = None if prefetched is None else self._place(prefetched)

    def run(self) -> tuple[TrainState, dict[str, Any]]:
        """Take all steps that are left.

        Returns:
            The state after them, and what a checkpoint of it says.

        Raises:
            Preempted: the run was asked to stop.
            Exception: whatever a step or an evaluation has failed with; the last finished step is saved.
        """
        is_first = processes.is_first()
        state = self._state
        del self._state  # the first step takes over its memory
        metrics_path = self._run.folder / METRICS_FILE
        samples_path = self._run.folder / SAMPLES_FILE
        self._run.trackers.begin(self.start)
        if self._steps.before and not self.start:
            self._run.trackers.log(0, self._steps.before)
        with (
            self._checkpoints,
            JsonlLog(metrics_path, enabled=is_first) as metrics,
            JsonlLog(samples_path, enabled=is_first and self._steps.show is not None) as samples,
            self._run.console.progress(
                self._steps.total,
                self._steps.title,
                self.start,
                header=self._steps.header,
                hint=headline.hint,
            ) as progress,
        ):
            # A log may be ahead of the checkpoint: the steps after it are taken, and logged, again.
            metrics.truncate_after(self.start)
            samples.truncate_after(self.start)
            for number in range(self.start, self._steps.total):
                output = self._step(state, number, metrics)
                state = output.state
                self._finish(output, metrics, samples, progress)
        preemption.set_unsaved(False)
        self._print_best()
        record = processes.on_first(lambda: read_metrics(metrics_path)[-1])
        return state, self._meta(record)

    def _check_settings(self) -> None:
        """Raise a `ConfigError` unless the checkpoint has the settings of this run, whatever `config.yaml` says."""
        saved = self._checkpoints.read_meta(self.start)["config"]
        source = f"checkpoint {self.start} in {self._run.folder}"
        check_settings(saved, self._steps.meta["config"], self._run.config, source)

    def _place(self, prefetched: dict[str, Any]) -> dict[str, Any] | None:
        """Put the batch of a checkpoint that was sampled ahead on the devices; None where it has to be sampled anew."""
        # When to evaluate and to save has no influence on what is sampled.
        changed = self._changed() - flatten(self._config).keys()
        if not changed:
            return self._run.parallel.put(prefetched, 0)
        self._run.console.warn(
            f"the batch of update {self.start + 1} was sampled under other settings ({', '.join(sorted(changed))}): it "
            "is sampled anew"
        )
        return None

    def _changed(self) -> set[str]:
        """Return the settings whose values are others than those of the checkpoint."""
        saved = processes.on_first(lambda: self._checkpoints.read_meta(self.start)["config"])
        return set(changed_settings(saved, self._steps.meta["config"], self._run.config))

    def _step(self, state: TrainState, number: int, metrics: JsonlLog) -> StepOutput:
        """Take a step and evaluate where that is due; save before anything ends the run here.

        `state` and `num_done` always belong together: before the step they are those of the step before, after it those
        of this one. So whatever is raised, and wherever, the handler saves a state under the number of its updates.
        """
        total = self._steps.total
        num_done = number
        preemption.set_unsaved(self._saved < num_done)
        try:
            preemption.check()
            self._checkpoints.check()
            output = self._steps.step(state, self._prefetched, number)
            state = output.state
            num_done = number + 1
            self._prefetched = output.prefetched
            preemption.set_unsaved(True)
            self._record = output.record
            if self._config.evaluates_at(num_done, total):
                self._record |= self._steps.evaluate(state)
            self._config.check_record(self._record, total)
            return output
        except Exception as error:
            is_stopped = isinstance(error, Preempted)
            # A step that failed half-way may have given the memory of the state away.
            if self._saved < num_done and (is_stopped or can_be_saved(state)):
                if num_done > number:
                    self._run.console.warn(
                        f"update {num_done} is saved without its evaluation, which is not repeated"
                    )
                    self._log(self._record, metrics)
                with activity.show("saving"):
                    self._save(num_done, state)
            # Ctrl-C also ends what a reward function has started:
            # its failure is then that of a run that was stopped.
            if not is_stopped and processes.is_alone():
                preemption.check()
            raise

    def _finish(
        self, output: StepOutput, metrics: JsonlLog, samples: JsonlLog, progress: Progress
    ) -> None:
        """Log a step, save it where that is due, look at it, show it."""
        steps = self._steps
        record = output.record
        num_done = int(record["step"])
        # Logged before it is saved: a log that is ahead is
        # cut back on resume, one that lags has lost a record.
        self._log(record, metrics)
        for sample in (*output.samples, *output.noted):
            samples.append(sample)
        if output.samples and steps.show is not None:
            self._run.trackers.samples(num_done, output.samples)
            steps.show(self._run.console, output.samples)
        if self._config.saves_at(num_done, steps.total) or steps.is_over(record):
            with activity.show("saving"):
                self._save(num_done, output.state)
        # After the saving, as this may end the run.
        steps.watch(output)
        progress.update(num_done, **headline.numbers(record))

    def _log(self, record: dict[str, Any], metrics: JsonlLog) -> None:
        metrics.append(record)
        self._run.trackers.log(int(record["step"]), record)

    def _save(self, num_done: int, state: TrainState) -> None:
        # Before the checkpoint: a resumed run logs no step again that the checkpoint has.
        self._run.trackers.flush()
        self._checkpoints.save(num_done, state, self._meta(self._record), self._prefetched)
        self._saved = num_done

    def _meta(self, record: dict[str, Any]) -> dict[str, Any]:
        episode = {"episode": record["episode"]} if "episode" in record else {}
        return self._steps.meta | {"step": record["step"], **episode, "metrics": record}

    def _print_best(self) -> None:
        """Say which checkpoint is the best one, where one is chosen, and how to get its models."""
        step = self._checkpoints.best_step
        if step is not None:
            command = f"python -m jaxppo.export --run_dir {shlex.quote(str(self._run.folder))} --step {step}"
            self._run.console.print(f"best checkpoint: update {step}; {command} gives its models")
