"""Agreement with recorded verdicts of VAL, case by case.

The built-in validator may differ only by being stricter, and only for a listed reason; each reason is counted.
"""

import json
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import PlanError, PlanVerdict, UnsupportedPddlError, parse_domain, parse_problem, validate_plan
from tests import ROOT

CORPUS = Path(os.environ.get("JAXPPO_VAL_CORPUS", ROOT.parent / "shared" / "val-corpus"))
pytestmark = pytest.mark.skipif(
    not (CORPUS / "cases.jsonl").is_file(), reason=f"no recorded VAL verdicts at {CORPUS} (set JAXPPO_VAL_CORPUS)"
)


def words(text: str) -> set[str]:
    return set(text.split())


# Texts that only differ in layout: the verdict must be VAL's.
BENIGN_TEXTS = words(
    """action_over_lines blank_lines comment_hides_action comment_inside_action comment_lines comment_only
    comment_only_no_nl comment_word_no_nl cost5_comment_nl cost_comment_nl cost_comment_no_nl cr_only crlf extra_spaces
    mixed_case newline_only no_separators no_trailing_newline one_line tabs upper_case whitespace_only"""
)

# Why a plan that is valid for VAL is none here: reason to the kinds of text it explains.
STRICT_TEXTS = {
    "text behind, before or between the steps, which ends the plan for VAL": """close_tag_only cost_line extra_close_end
        extra_close_mid hash_comment_after plan_tags prose_after prose_after_paren prose_before prose_between
        trailing_dots""",
    "characters that VAL drops": """at_sign_in_object bom commas commas_in_args double_quotes form_feed md_fence nbsp
        non_ascii_between non_ascii_in_name non_ascii_in_object non_ascii_tail nul_byte smart_quotes""",
    "time stamps, durations and headers": """duration_suffix duration_suffix_float time_header time_header_float
        timestamps_dur timestamps_float timestamps_gap_ok timestamps_int timestamps_negative timestamps_nospace
        timestamps_parallel_pair timestamps_permuted_lines timestamps_small_gap""",
    "a last comment without newline, which VAL reads as steps": "comment_known_action_no_nl",
}
# Files that VAL reads on through, and that are refused here.
STRICT_FILES = words(
    """duplicate_action_first_wins goal_undeclared_object init_undeclared_object
    no_objects_section predicate_arity t_unknown_object_type undeclared_predicate_effect"""
)
# Operators that lack a part, which VAL loses: read here, so that plans may have them.
LENIENT_FILES = words("no_parameters empty_effect")
STRICT_STEPS = {
    PlanError.WRONG_ARITY: "arguments beyond an operator's parameters, which VAL ignores in untyped domains",
    PlanError.UNKNOWN_OBJECT: "objects that the problem does not declare, which VAL invents in untyped domains",
}
BAD_FILES = "domain or problem files that are not right PDDL"
LENIENT = "operators without one of their parts"
EXPECTED_STRICTNESS = {
    "text behind, before or between the steps, which ends the plan for VAL": 140,
    "characters that VAL drops": 270,
    "time stamps, durations and headers": 262,
    "a last comment without newline, which VAL reads as steps": 4,
    STRICT_STEPS[PlanError.WRONG_ARITY]: 19,
    STRICT_STEPS[PlanError.UNKNOWN_OBJECT]: 2,
    BAD_FILES: 7,
    LENIENT: 3,
}


@cache
def read(name: str) -> str:
    return (CORPUS / name).read_text(encoding="utf-8")


@cache
def recorded() -> list[tuple[dict, PlanVerdict | PddlError]]:
    """Every case of the corpus with our verdict, or our reason for not reading its files."""
    with (CORPUS / "cases.jsonl").open(encoding="utf-8") as file:
        return [(case, judged(case)) for case in map(json.loads, file)]


def judged(case: dict) -> PlanVerdict | PddlError:
    try:
        parse_problem(read(case["problem_file"]), parse_domain(read(case["domain_file"])))
        return validate_plan(read(case["domain_file"]), read(case["problem_file"]), case["plan"])
    except PddlError as error:
        return error


def strictness(case: dict, ours: PlanVerdict | PddlError) -> str | None:
    """The reason why a plan that VAL calls valid is refused here, if there is one."""
    if isinstance(ours, PddlError):
        return BAD_FILES if case["kind"].removeprefix("pddl:") in STRICT_FILES else None
    if ours.error is PlanError.SYNTAX:
        kind = case["kind"].removeprefix("text:")
        return next((reason for reason, kinds in STRICT_TEXTS.items() if kind in words(kinds)), None)
    is_typed = parse_domain(read(case["domain_file"])).types
    return None if is_typed or ours.error is None else STRICT_STEPS.get(ours.error)


def is_lenient(case: dict) -> bool:
    return case["kind"].removeprefix("pddl:") in LENIENT_FILES


def test_corpus_files_and_benign_texts_are_read():
    domains, refused, kinds = set(), set(), set()
    for case, ours in recorded():
        assert not isinstance(ours, UnsupportedPddlError)
        domains.add(case["domain"])
        if isinstance(ours, PddlError):
            refused.add(case["domain"])
        kind = case["kind"].removeprefix("text:")
        kinds.add(kind)
        if kind in BENIGN_TEXTS:
            assert isinstance(ours, PlanVerdict) and ours.valid == case["valid"], case["id"]
            assert ours.error is not PlanError.SYNTAX or case["parse_error"], case["id"]
    assert len(domains) == 30 and refused == {"pddl-quirks"} and kinds >= BENIGN_TEXTS


def test_corpus_valid_is_the_same_except_for_listed_strictness():
    counts, kinds = Counter(), set()
    for case, ours in recorded():
        valid = isinstance(ours, PlanVerdict) and ours.valid
        if valid == case["valid"]:
            continue
        reason = LENIENT if is_lenient(case) else strictness(case, ours)
        assert case["valid"] is not (reason == LENIENT) and reason, (
            f"{case['id']} ({case['kind']}): VAL {case['valid']}, ours {ours}"
        )
        counts[reason] += 1
        kinds.add(case["kind"].partition(":")[2])
    assert counts == EXPECTED_STRICTNESS
    steps = {"", "unknown_object_no_static_check", "forall_unknown_plan_object"}
    assert kinds - steps == LENIENT_FILES | STRICT_FILES.union(*map(words, STRICT_TEXTS.values()))


def test_corpus_plans_that_are_read_run_as_far_as_in_val():
    compared = 0
    for case, ours in recorded():
        if isinstance(ours, PddlError) or ours.error is PlanError.SYNTAX or strictness(case, ours) or is_lenient(case):
            continue
        assert ours.executable == case["executable"], case["id"]
        if ours.error is PlanError.PRECONDITION and case["failed_step"]:
            assert ours.failed_step == case["failed_step"], case["id"]
        compared += 1
    assert compared == 4671
