"""A second opinion during training: VAL judges a sample of the plans again.

The in-process validator is meant to agree with VAL; an audit measures on the run's own plans whether it does, and keeps
the evidence where it does not.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning.language.plans import TimedAction, format_action, format_timed_action
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.deviations import deviation
from jaxppo.planning.validate.val import Case, find_val, run_val, run_val_many

MOST_SAVED = 100
"""Disagreements kept in a folder: more of them add nothing."""

_LOG = logging.getLogger(__name__)
_NO_VERDICT = (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT)
_UNFINISHED = ".unfinished-"


class AuditResult(NamedTuple):
    """What an audit found.

    Attributes:
        audited: different plans that VAL was asked about.
        disagreements: plans on which the two verdicts differ in `valid` or `executable`.
        failed: plans on which one side gave no verdict: a crash, a timeout, a domain that VAL cannot read.
        saved: folders written by this call.
        deviations: plans on which VAL gave no verdict for a reason that `docs/validator.md` lists; not among `failed`.
    """

    audited: int
    disagreements: int
    failed: int
    saved: list[Path]
    deviations: int = 0


class Audit:
    """Has VAL judge a sample of plans again.

    Whether a plan is in the sample is a function of the seed and its content, so a resumed run audits the same
    plans, and in one call equal plans are audited once.

    Args:
        rate: the fraction of plans to audit, in [0, 1].
        seed: chooses the sample.
        folder: where disagreements are kept, in `<digest>/` with `domain.pddl`, `problem.pddl`, `plan.txt` and
            `verdicts.json`; the first `MOST_SAVED` only. None: they are counted.
        timeout_s: limit of one VAL process.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, rate: float, seed: int, folder: Path | None, timeout_s: float = 30.0):
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= rate <= 1:
            raise ConfigError(f"audit_rate: expected a number in [0, 1], got {rate!r}")
        if not timeout_s > 0:
            raise ConfigError(f"val_timeout_s: expected a positive number, got {timeout_s!r}")
        self.rate, self.seed, self.folder, self.timeout_s = rate, seed, folder, timeout_s

    def check(self, cases: Sequence[Case], verdicts: Sequence[PlanVerdict]) -> AuditResult:
        """Audit a batch.

        Args:
            cases: (domain text, problem text, plan) each, as for `run_val_many`.
            verdicts: what another validator said about them.

        Raises:
            ValidatorError: VAL is missing.
        """
        sample = self._sample(cases, verdicts)
        opinions = _ask([case for case, _ in sample.values()], self.timeout_s)
        failed, differing, deviating, saved = 0, 0, 0, []
        for (digest, (case, verdict)), opinion in zip(sample.items(), opinions, strict=True):
            if opinion.error in _NO_VERDICT and verdict.error not in _NO_VERDICT and deviation(*case):
                deviating += 1
            elif opinion.error in _NO_VERDICT or verdict.error in _NO_VERDICT:
                failed += 1
            elif (verdict.valid, verdict.executable) != (opinion.valid, opinion.executable):
                differing += 1
                saved += self._saved(digest, case, {"checked": verdict, "val": opinion})
        return AuditResult(len(sample), differing, failed, saved, deviating)

    def _sample(self, cases: Sequence[Case], verdicts: Sequence[PlanVerdict]) -> dict[str, tuple[Case, PlanVerdict]]:
        """Choose the plans to audit: their digests, each with its case and verdict."""
        sample: dict[str, tuple[Case, PlanVerdict]] = {}
        for case, verdict in zip(cases, verdicts, strict=True):
            digest = _digest(case)
            if _uniform(self.seed, digest) < self.rate:
                sample.setdefault(digest, (case, verdict))
        return sample

    def _saved(self, digest: str, case: Case, verdicts: Mapping[str, PlanVerdict]) -> list[Path]:
        """Keep the evidence, unless it is kept already or there is enough; a full disk does not end a training run."""
        if self.folder is None:
            return []
        try:
            return _save(self.folder, self.folder / digest, case, verdicts)
        except OSError as error:
            _LOG.warning("audit: a disagreement with VAL could not be saved: %s", error)
            return []


def _digest(case: Case) -> str:
    domain, problem, _ = case
    content = json.dumps([domain, problem, _plan_text(case)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _uniform(seed: int, digest: str) -> float:
    """Turn a digest into a number in [0, 1) that looks random."""
    bits = hashlib.sha256(f"{seed} {digest}".encode()).digest()[:6]
    return int.from_bytes(bits) / 2 ** (8 * len(bits))


def _plan_text(case: Case) -> str:
    lines = (format_timed_action(step) if isinstance(step, TimedAction) else format_action(step) for step in case[2])
    return "".join(f"{line}\n" for line in lines)


def _ask(cases: Sequence[Case], timeout_s: float) -> list[PlanVerdict]:
    """Ask VAL; a domain that it cannot read costs the plans of that domain their verdicts, not the others."""
    try:
        return run_val_many(cases, timeout_s)
    except ValidatorError:
        if find_val() is None:
            raise
    return [_ask_alone(case, timeout_s) for case in cases]


def _ask_alone(case: Case, timeout_s: float) -> PlanVerdict:
    try:
        return run_val(*case, timeout_s)
    except ValidatorError as error:
        _LOG.warning("audit: %s", error)
        return PlanVerdict.refused(PlanError.VALIDATOR_CRASH)


def _save(folder: Path, target: Path, case: Case, verdicts: Mapping[str, PlanVerdict]) -> list[Path]:
    """Write a folder under another name first, so that it is never seen incomplete."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [entry for entry in folder.iterdir() if not entry.name.startswith(_UNFINISHED)]
    if target in kept or len(kept) >= MOST_SAVED:
        return []
    reasons = {name: asdict(verdict) for name, verdict in verdicts.items()}
    texts = {"domain.pddl": case[0], "problem.pddl": case[1], "plan.txt": _plan_text(case)}
    texts["verdicts.json"] = json.dumps(reasons, indent=2) + "\n"
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        for name, text in texts.items():
            (unfinished / name).write_text(text, encoding="utf-8", errors="replace", newline="\n")
        unfinished.chmod(0o755)  # mkdtemp's folders are for their owner only
        os.rename(unfinished, target)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        if target.is_dir():  # another process was faster
            return []
        raise
    return [target]
