"""PlanBench's recorded answers, a sample of 1,461: every verdict, and every reason why one differs from the record."""

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from jaxppo.evaluate.answers.agreement import Reason, agreement, saved_by_rule
from jaxppo.evaluate.answers.judging import AnswerJudge, rows_of
from jaxppo.evaluate.plan_metrics import plan_results
from jaxppo.planning.answers.columns import parse_columns
from jaxppo.planning.answers.extraction import Rule
from jaxppo.planning.answers.problems import Problems
from jaxppo.planning.answers.reading import read_answers
from tests import ROOT

SAMPLE = Path(os.environ.get("JAXPPO_PLANBENCH", ROOT.parent / "shared" / "planbench")) / "llm_planning_analysis"
if not SAMPLE.is_dir():
    pytest.skip(f"no sample of PlanBench's answers in {SAMPLE} (JAXPPO_PLANBENCH)", allow_module_level=True)


@cache
def judged(rule: Rule = "strict", columns: str | None = None):
    problems = Problems(SAMPLE / "instances")
    answers = read_answers(SAMPLE / "results", parse_columns(columns), problems.configs, problems.folders)
    done, unread = AnswerJudge(problems, rule)(answers)
    assert unread == []
    return problems, done


def test_every_verdict_of_the_sample_and_every_reason():
    problems, done = judged()
    counts = Counter((one.verdict.valid, one.answer.recorded) for one in done)
    assert counts == {(False, False): 1078, (True, True): 380, (False, True): 3}
    assert Counter(one.task.domain for one in done if one.verdict.valid) == {
        "blocksworld": 110,
        "blocksworld_3": 198,
        "logistics": 17,
        "mystery_blocksworld": 39,
        "obfuscated_randomized_logistics": 12,
        "sokoban": 4,
    }
    found = agreement(done)
    assert (found["compared"], found["equal"]) == (1461, 1458)
    assert found["reasons"][Reason.AROUND] == 3
    assert {one["domain"]: one["reason"] for one in found["disagreements"]} == {"mystery_blocksworld": Reason.AROUND}
    rows = rows_of(done, problems)
    assert len(rows) == 13
    results = plan_results(rows["o1-preview_chat"])
    assert results["zero_shot"]["domains"]["blocksworld"]["validity"]["rate"] == 23 / 24
    assert saved_by_rule(done) == {
        "strict": {"readable": 1435, "valid": 380, "saved": 0},
        "last": {"readable": 1460, "valid": 394, "saved": 14},
    }
