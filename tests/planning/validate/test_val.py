"""VAL as a subprocess: its real verdicts, and programs that misbehave in its place."""

import math
import sys

import pytest

from jaxppo.errors import ConfigError, PddlError, ValidatorError
from jaxppo.planning import PlanError, PlanVerdict, validate_plan
from jaxppo.planning.language.plans import parse_plan_text
from jaxppo.planning.validate import val
from jaxppo.planning.validate.val import find_val, run_val, run_val_many
from tests.planning.val_oracle import essence, needs_val
from tests.planning.vault import DOMAIN, PROBLEM, SOLUTION
from tests.processes import is_running, wait_until

PLAN = parse_plan_text(SOLUTION).actions
STAY = (("stay", "hall", "hall"),)
refused = PlanVerdict.refused
VALID = PlanVerdict.executed(goal_reached=True)
GOAL_MISSED = PlanVerdict.executed(goal_reached=False)
CRASH = refused(PlanError.VALIDATOR_CRASH)
TIMEOUT = refused(PlanError.VALIDATOR_TIMEOUT)
SAY_VALID = "print('Plan valid\\nSuccessful plans:', flush=True)"
REFUSE = "print('Problem in domain definition!', file=sys.stderr)"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the limit holds on Linux only")


@needs_val
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        ("", GOAL_MISSED),
        ("(walk attic hall) (take cup) (rest)", refused(PlanError.PRECONDITION, 2)),
        (f"{SOLUTION} (rest vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault moon)", refused(PlanError.UNKNOWN_OBJECT, 5)),
        (f"{SOLUTION} (unlock vault cup)", refused(PlanError.WRONG_TYPE, 5)),
        (f"{SOLUTION} BAD", refused(PlanError.SYNTAX, 5)),
        (f"{SOLUTION}\n(take $(touch x)) `touch x` ; touch x", refused(PlanError.SYNTAX, 5)),
        ("(walk attic hall) (take " + "k" * 1_000_000 + ")", refused(PlanError.UNKNOWN_OBJECT, 2)),
        ("(walk attic hall)\n(walk hall attic)\n" * 2_500, GOAL_MISSED),
    ],
    ids=lambda value: str(value)[:40],
)
def test_validate_plan_asks_val(plan, expected):
    assert essence(validate_plan(DOMAIN, PROBLEM, plan, validator="val")) == essence(expected)


@needs_val
def test_val_that_refuses_the_domain_is_an_error_and_not_a_verdict():
    broken = DOMAIN.rstrip().removesuffix(")") + "(:constraints (bogus)))"
    with pytest.raises(ValidatorError, match="VAL"):
        run_val(broken, PROBLEM, PLAN)


def test_run_val_checks_the_files_first(fake_val):
    fake_val("raise SystemExit('never called')")
    for problem in ("(define", "\x00" + PROBLEM, PROBLEM + "\ud800", PROBLEM.replace("attic", "../attic")):
        with pytest.raises(PddlError, match=r"^<problem>"):
            run_val_many([(DOMAIN, PROBLEM, PLAN), (DOMAIN, problem, PLAN)])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('Plan valid')", "exit status 0 and no verdict; its last line: Plan valid"),
        (f"{SAY_VALID}; sys.exit(1)", "exit status 1"),
        (f"{SAY_VALID}; os.abort()", "signal 6"),
        ("sys.exit('Error: out of words')", "its last line: Error: out of words"),
        ("os.write(1, bytes(range(256)))", "exit status 0"),
        ("", "its last line: nothing"),
    ],
)
def test_anything_unclear_is_a_crash_with_a_reason_that_is_logged_once(fake_val, monkeypatch, caplog, body, reason):
    monkeypatch.setattr(val, "_logged", set())
    fake_val(body)
    assert run_val_many([(DOMAIN, PROBLEM, PLAN), (DOMAIN, PROBLEM, STAY)]) == [CRASH, CRASH]
    (message,) = [record.getMessage() for record in caplog.records]
    assert reason in message


@pytest.mark.parametrize(
    "body",
    [
        f"{SAY_VALID}; time.sleep(60)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        "os.close(1); os.close(2); time.sleep(60)",
        "subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)",
    ],
)
def test_program_that_hangs_is_stopped(fake_val, body):
    fake_val(body)
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=0.3) == TIMEOUT


@linux_only
def test_what_a_program_that_hangs_has_started_is_killed_with_it(fake_val, tmp_path):
    fake_val(
        "child = subprocess.Popen(['sleep', '60'])\nopen(HERE + '/pid', 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=0.5) == TIMEOUT
    child = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_running(child))


def test_nobody_waits_for_output_that_a_grandchild_keeps_open(fake_val):
    fake_val(f"subprocess.Popen(['sleep', '20'], start_new_session=True); {SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=10) == VALID


@linux_only
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_too_much_output_is_a_crash(fake_val, tmp_path, monkeypatch, stream):
    monkeypatch.setattr(val, "_OUTPUT_BYTES", 2 << 20)
    flood = f"for _ in range(2_000): sys.{stream}.write('x' * 20_000); time.sleep(0.002)"
    fake_val(f"{SAY_VALID}\n{flood}\nopen(HERE + '/finished', 'w')")
    assert run_val(DOMAIN, PROBLEM, PLAN) == CRASH
    assert not (tmp_path / "finished").exists()


@linux_only
@pytest.mark.parametrize(("limit_mib", "expected"), [(500, CRASH), (1500, VALID)])
def test_memory_beyond_the_limit_is_a_crash(fake_val, monkeypatch, limit_mib, expected):
    monkeypatch.setattr(val, "_MEMORY_BYTES", limit_mib << 20)
    # Address space, which is what is limited; nothing is written there.
    fake_val(f"import mmap; time.sleep(0.1); hoard = mmap.mmap(-1, 600 << 20); {SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN) == expected


@linux_only
def test_a_crash_leaves_no_core_file(fake_val, tmp_path):
    fake_val(
        "import resource; time.sleep(0.1); print(resource.getrlimit(resource.RLIMIT_CORE), flush=True); os.abort()"
    )
    answer = val._run([str(find_val()), tmp_path / "Validate"], tmp_path, 30)
    assert answer.stdout == "(0, 0)\n"


def test_run_val_writes_checked_actions_and_leaves_no_file(fake_val, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)
    fake_val(f"open(HERE + '/copy', 'w').write(PLAN)\nopen('junk', 'w').write('x')\n{SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID
    assert not (tmp_path / "junk").exists()
    assert (tmp_path / "copy").read_text() == "(walk attic hall)\n(take k)\n(unlock vault k)\n(walk hall vault)\n"
    fake_val(REFUSE)
    with pytest.raises(ValidatorError):
        run_val(DOMAIN, PROBLEM, PLAN)
    assert list((tmp_path / "work").iterdir()) == []


def test_run_val_many_keeps_the_order_and_every_other_verdict(fake_val):
    steps = {"stay hall": SAY_VALID, "walk attic": "time.sleep(60)", "take cup": "os.abort()"}
    fake_val("\n".join(f"if PLAN.startswith('({step}'): {body}" for step, body in steps.items()))
    plans = [STAY, PLAN, (("take", "cup"),), (("fly",),), STAY, (("take", "k"),), (*STAY, ("take", "k"))]
    verdicts = run_val_many([(DOMAIN, PROBLEM, plan) for plan in plans], timeout_s=3, workers=3)
    assert verdicts == [VALID, TIMEOUT, CRASH, refused(PlanError.UNKNOWN_ACTION, 1), VALID, CRASH, VALID]


def test_equal_cases_are_asked_once(fake_val, tmp_path):
    fake_val(f"open(HERE + '/calls', 'a').write('x'); {SAY_VALID}")
    other = PROBLEM + "\n"
    cases = [(DOMAIN, PROBLEM, STAY), (DOMAIN, PROBLEM, list(STAY)), (DOMAIN, other, STAY), (DOMAIN, PROBLEM, ())]
    assert run_val_many(cases * 3) == [VALID] * 12
    assert (tmp_path / "calls").read_text() == "xxx"
    assert run_val_many([]) == []


def test_after_an_error_no_other_program_starts(fake_val, tmp_path):
    fake_val(f"open(HERE + '/calls', 'a').write('x')\nif 'stay' in PLAN: {REFUSE}\nelse: time.sleep(0.5)")
    with pytest.raises(ValidatorError, match="VAL"):
        run_val_many([(DOMAIN, PROBLEM, STAY), *((DOMAIN, PROBLEM, PLAN[:n]) for n in range(4))], workers=1)
    assert len((tmp_path / "calls").read_text()) <= 2


@pytest.mark.parametrize(("name", "limit"), [("timeout_s", math.nan), ("workers", 0)])
def test_limits_must_be_positive(name, limit):
    with pytest.raises(ConfigError, match=name):
        run_val_many([(DOMAIN, PROBLEM, PLAN)], **{name: limit})


@pytest.mark.parametrize(
    "step", [(), ("walk attic hall",), ("walk", "attic", "hall", ""), ("walk", "attic", "../hall"), ("take", "k\n")]
)
def test_actions_that_no_parser_made_do_not_reach_val(fake_val, step):
    fake_val("raise SystemExit('never called')")
    verdict = run_val(DOMAIN, PROBLEM, [("walk", "attic", "hall"), step])
    assert verdict.error not in (None, PlanError.VALIDATOR_CRASH) and verdict.failed_step == 2


def test_the_path_in_the_environment_may_be_relative_and_must_be_that_of_a_program(fake_val, monkeypatch, tmp_path):
    fake_val(SAY_VALID)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXPPO_VAL", "./Validate")
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID
    (tmp_path / "Validate").chmod(0o600)
    with pytest.raises(ValidatorError, match="Validate"):
        run_val(DOMAIN, PROBLEM, PLAN)
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "none"))
    with pytest.raises(ValidatorError, match=r"JAXPPO_VAL.*none"):
        find_val()
