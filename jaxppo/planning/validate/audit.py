"""A second opinion during training: VAL judges a sample of the plans again.

The in-process validator is meant to agree with VAL; an audit measures whether it does on the plans of the run, and
saves the plans on which it does not.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import ValidatorError
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.validate.val import Case, find_val, format_plan, run_val, run_val_many

MAX_SAVED = 100
"""Disagreements saved in a folder: more of them add nothing."""

_LOG = logging.getLogger(__name__)
# Verdicts that say nothing about the plan itself.
_NO_VERDICT = (PlanError.VALIDATOR_CRASH, PlanError.VALIDATOR_TIMEOUT)


class AuditResult(NamedTuple):
    """What an audit found.

    Attributes:
        audited: different plans that VAL was asked about.
        disagreements: plans on which the two verdicts differ in `valid` or `executable`.
        failed: plans on which one side gave no verdict: a crash, a timeout, a file that VAL cannot read, for which
            `docs/validator.md` lists reasons.
        saved: folders written by this call.
    """

    audited: int
    disagreements: int
    failed: int
    saved: list[Path]


class Audit:
    """Has VAL judge a sample of plans again.

    Whether a plan is in the sample is a function of the seed and its content, so a resumed run audits the same
    plans, and in one call equal plans are audited once.

    Args:
        rate: the fraction of plans to audit, in [0, 1].
        seed: chooses the sample.
        folder: where disagreements are saved, in `<digest>/` with `domain.pddl`, `problem.pddl`, `plan.txt` and
            `verdicts.json`; the first `MAX_SAVED` only. None: they are only counted.
        timeout_s: limit of one VAL process.
    """

    def __init__(self, rate: float, seed: int, folder: Path | None, timeout_s: float = 30.0):
        self.rate = rate
        self.seed = seed
        self.folder = folder
        self.timeout_s = timeout_s

    def check(self, cases: Sequence[Case], verdicts: Sequence[PlanVerdict]) -> AuditResult:
        """Audit a batch.

        Args:
            cases: (domain text, problem text, plan) each, as for `run_val_many`.
            verdicts: what another validator said about them.

        Raises:
            ValidatorError: VAL is missing.
        """
        sample = self._sample(cases, verdicts)
        val_verdicts = _ask_val([case for case, _ in sample.values()], self.timeout_s)
        disagreements = 0
        failed = 0
        saved: list[Path] = []
        for digest, val_verdict in zip(sample, val_verdicts, strict=True):
            case, verdict = sample[digest]
            if verdict.error in _NO_VERDICT or val_verdict.error in _NO_VERDICT:
                failed += 1
            elif (verdict.valid, verdict.executable) != (val_verdict.valid, val_verdict.executable):
                disagreements += 1
                saved += self._save(digest, case, {"checked": verdict, "val": val_verdict})
        return AuditResult(len(sample), disagreements, failed, saved)

    def _sample(
        self, cases: Sequence[Case], verdicts: Sequence[PlanVerdict]
    ) -> dict[str, tuple[Case, PlanVerdict]]:
        """Choose the plans to audit: their digests, each with its case and verdict."""
        sample: dict[str, tuple[Case, PlanVerdict]] = {}
        for case, verdict in zip(cases, verdicts, strict=True):
            digest = _digest(case)
            if _uniform(self.seed, digest) < self.rate:
                sample.setdefault(digest, (case, verdict))
        return sample

    def _save(self, digest: str, case: Case, verdicts: Mapping[str, PlanVerdict]) -> list[Path]:
        """Save a plan with both verdicts, unless it is saved already or there are enough."""
        if self.folder is None:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / digest
        if target.exists() or len(list(self.folder.iterdir())) >= MAX_SAVED:
            return []
        domain, problem, plan = case
        verdicts_as_data = {name: asdict(verdict) for name, verdict in verdicts.items()}
        texts = {
            "domain.pddl": domain,
            "problem.pddl": problem,
            "plan.txt": format_plan(plan),
            "verdicts.json": json.dumps(verdicts_as_data, indent=2) + "\n",
        }
        # Another process may save the same plan at the same time.
        target.mkdir(exist_ok=True)
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8", errors="replace", newline="\n")
        return [target]


def _digest(case: Case) -> str:
    domain, problem, plan = case
    # As a list, so that moving text from the end of one
    # part to the start of the next gives another digest.
    content = json.dumps([domain, problem, format_plan(plan)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _uniform(seed: int, digest: str) -> float:
    """Turn a digest into a number in [0, 1) that looks random."""
    # No generator of random numbers: the sample must not depend
    # on the order of plans, nor on where a run was resumed.
    first_bytes = hashlib.sha256(f"{seed} {digest}".encode()).digest()[:6]
    return int.from_bytes(first_bytes) / 2 ** (8 * len(first_bytes))


def _ask_val(cases: Sequence[Case], timeout_s: float) -> list[PlanVerdict]:
    """Ask VAL for its verdicts.

    One domain that VAL cannot read fails the whole batch, so each plan is then asked about alone: only the plans of
    that domain lose their verdict.
    """
    try:
        return run_val_many(cases, timeout_s)
    except ValidatorError:
        # Without VAL every single plan would fail in the same way.
        if find_val() is None:
            raise
    verdicts: list[PlanVerdict] = []
    for case in cases:
        try:
            verdicts.append(run_val(*case, timeout_s))
        except ValidatorError as error:
            _LOG.warning("audit: %s", error)
            verdicts.append(PlanVerdict.refused(PlanError.VALIDATOR_CRASH))
    return verdicts
