"""Measures of plans by hand, and against an independent loop."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from jaxppo.errors import ConfigError
from jaxppo.evaluate.intervals import mean_interval, wilson
from jaxppo.evaluate.plan_metrics import measure, pass_at_k, plan_results, summary_table
from jaxppo.evaluate.predictions import Prediction, judge_rows
from jaxppo.planning import validate_plan
from jaxppo.planning.datasets.rows import build_split
from tests.lamps import BY_HAND, COST_DOMAIN, COST_PROBLEM, MEASURES, judged, lamp_row, several


@pytest.mark.parametrize("text", BY_HAND)
def test_measure_of_one_answer_by_hand(text):
    error, values = BY_HAND[text]
    cell = measure(judged(text))
    assert [cell[name]["mean"] for name in MEASURES] == pytest.approx(values)
    assert {name for name, count in cell["errors"].items() if count} == {error}
    assert cell["validity"]["rate"] == (error == "valid")
    assert cell["executability"]["rate"] == (error in ("valid", "goal_not_reached"))
    assert cell["readable"]["rate"] == (error != "syntax")
    assert cell["exact_match"]["rate"] == (text == "light a ; light b")


def test_length_ratio_is_of_valid_plans_and_ended_is_measured_where_answers_say():
    assert measure(judged(*BY_HAND))["length_ratio"]["mean"] == pytest.approx((1 + 1 + 1.5) / 3)
    assert measure(judged("light a"))["length_ratio"] is None
    rows = [lamp_row(f"p{i}") for i in range(4)]
    predictions = [[Prediction("", True)], [Prediction("", False)], [Prediction("", None)], [Prediction("", True)]]
    assert measure(judge_rows(rows, predictions))["ended"] == wilson(2, 3)
    assert measure(judged("", ""))["ended"] is None


def test_several_references_count_by_the_best_and_without_one_nothing_is_measured_by_it():
    cell = measure(judged("light b ; light a", reference_plan=[["(light a)", "(light b)"], ["(light b)", "(light a)"]]))
    assert cell["exact_match"]["rate"] == cell["lccs"]["mean"] == cell["lcs_by_reference"]["mean"] == 1.0
    cell = measure([replace(one, row=one.row | {"reference_plan": None}) for one in judged(RIGHT, "", SHORT)])
    by_reference = ("exact_match", "lccs", "lcs", "lccs_by_reference", "length_ratio", "quality")
    assert [cell[name] for name in by_reference] == [None] * len(by_reference)
    assert cell["validity"]["rate"] == pytest.approx(1 / 3)


def test_quality_is_of_costs():
    shop = {"domain_pddl": COST_DOMAIN, "problem_pddl": COST_PROBLEM, "reference_plan": ["(steal a)"]}
    texts = ("steal a", "buy a", "buy a ; steal a", "buy a ; buy a ; buy a ; buy a", "", "steal")
    cell = measure(judged(*texts, **shop))
    assert cell["quality"]["mean"] == pytest.approx((1 + 1 + 10 / 13 + 10 / 12 + 0 + 0) / 6)
    assert measure(judged("buy a", **(shop | {"reference_plan": []})))["quality"] is None


def test_a_goal_without_conditions_and_an_empty_reference():
    done = {"problem_pddl": lamp_row()["problem_pddl"].replace("(and (lit a) (lit b))", "(and)"), "reference_plan": []}
    cell = measure(judged("", "light c", **done))
    assert cell["goal"]["mean"] == 0.5 and cell["validity"]["rate"] == 0.5
    assert cell["length_ratio"] is None and cell["exact_match"]["rate"] == 0.5
    assert cell["lccs"]["mean"] == 0.0  # no divisor: as the reward has it


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_equals_enumeration(n):
    for right in range(n + 1):
        samples = [i < right for i in range(n)]
        for k in range(1, n + 1):
            drawn = list(combinations(samples, k))
            assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, drawn)) / len(drawn))


RIGHT, ALSO, SHORT, BAD = "light a ; light b", "light b ; light a", "light a", ")"


def test_samples_of_a_problem_by_hand():
    cell = measure(several([RIGHT, ALSO, RIGHT, SHORT], [RIGHT, BAD, BAD, SHORT], [SHORT] * 4))
    assert cell["validity"]["rate"] == pytest.approx((3 / 4 + 1 / 4 + 0) / 3)
    assert (cell["validity"]["n"], cell["validity"]["samples"]) == (3, 12)
    assert list(cell["pass_at_k"]) == ["1", "2", "4"]
    assert cell["pass_at_k"]["1"]["mean"] == pytest.approx(1 / 3)
    assert cell["pass_at_k"]["2"]["mean"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert cell["pass_at_k"]["4"]["mean"] == pytest.approx(2 / 3)
    assert cell["lccs"] == mean_interval([(1 + 0.5 + 1 + 0.5) / 4, (1 + 0 + 0 + 0.5) / 4, 0.5], (0, 1))
    assert cell["answers"] == sum(cell["errors"].values()) == 12
    # Powers of pass@k are those that every problem has.
    assert list(measure(several([RIGHT] * 5, [RIGHT] * 3))["pass_at_k"]) == ["1", "2"]
    assert list(measure(several([RIGHT]))["pass_at_k"]) == ["1"]
    assert measure([])["pass_at_k"] == {} and measure([])["validity"] is None


def test_seeds_are_kept_apart_for_what_is_about_samples():
    cell = measure(several([RIGHT, ALSO, SHORT, SHORT], [RIGHT, BAD, RIGHT, BAD], seeds=2))
    assert list(cell["pass_at_k"]) == ["1", "2"]  # two samples of each seed, not four
    assert cell["pass_at_k"]["2"]["mean"] == pytest.approx(((1 + 0) / 2 + (1 + 1) / 2) / 2)
    assert cell["validity_by_seed"] == {"0": 3 / 4, "1": 1 / 4}
    assert cell["validity_sd_over_seeds"] == pytest.approx(math.sqrt(1 / 8))
    assert cell["validity"]["n"] == 2
    assert "validity_by_seed" not in measure(several([RIGHT, BAD]))


def test_a_problem_counts_once_in_the_validity_of_a_seed_and_equal_seeds_say_no_more_than_one():
    rows = [lamp_row("p0"), lamp_row("p1")]
    answers = [(RIGHT, 0), (RIGHT, 1), (RIGHT, 0), (RIGHT, 0)], [(BAD, 0), (BAD, 1)]
    cell = measure(judge_rows(rows, [[Prediction(text, seed=seed) for text, seed in each] for each in answers]))
    assert cell["validity_by_seed"] == {"0": 0.5, "1": 0.5} and cell["validity_sd_over_seeds"] == 0.0
    once = measure(several([RIGHT], [BAD], [SHORT], [RIGHT]))
    thrice = measure(several([RIGHT] * 3, [BAD] * 3, [SHORT] * 3, [RIGHT] * 3, seeds=3))
    for name in ("validity", "executability", "readable"):
        assert thrice[name] == once[name] | {"samples": 12}
    for name in ("lccs", "goal", "quality"):
        assert thrice[name] == once[name]
    assert thrice["pass_at_k"] == once["pass_at_k"]


# -------------------------------------------------------------------------------------------------- an independent loop


def common(a, b, contiguous):
    """The longest common run or subsequence, by trying all of the shorter plan's."""
    best = 0
    for mask in range(1 << len(a)):
        picked = [i for i in range(len(a)) if mask >> i & 1]
        part = [a[i] for i in picked]
        if contiguous:
            is_run = not picked or picked[-1] - picked[0] + 1 == len(picked)
            found = is_run and any(b[j : j + len(part)] == part for j in range(len(b) + 1))
        else:
            rest = iter(b)
            found = all(step in rest for step in part)
        best = max(best, len(part)) if found else best
    return best


@cache
def spoiled_rows():
    rng = random.Random(5)
    rows = build_split("test", sizes={3: 5, 4: 10}, seed=0, unique=True)
    rows += build_split("test_longer", sizes={4: 10}, seed=1, unique=False)
    for i, row in enumerate(rows):
        row["id"], row["domain"] = f"row{i}", ("blocks", "towers")[i % 2]
    return rows, [[Prediction(spoiled(row["completion"], rng), rng.random() < 0.8)] for row in rows]


def spoiled(completion, rng):
    steps = completion.split(" ; ")
    match rng.randrange(6):
        case 0:
            steps.pop(rng.randrange(len(steps)))
        case 1:
            steps.insert(rng.randrange(len(steps)), rng.choice(["pick-up qq", "fly", rng.choice(steps)]))
        case 2:
            steps[rng.randrange(len(steps))] += " !"
        case 3:
            rng.shuffle(steps)
    return " ; ".join(steps)


def test_plan_results_equal_an_independent_loop():
    rows, predictions = spoiled_rows()
    results = plan_results(judge_rows(rows, predictions), edges=(4, 8))  # of which there are some
    found = {}
    for row, (prediction,) in zip(rows, predictions, strict=True):
        readable = "!" not in prediction.text
        steps = [f"({step})" for step in prediction.text.split(" ; ") if step]
        verdict = validate_plan(row["domain_pddl"], row["problem_pddl"], "\n".join(steps))
        reference, longest = row["reference_plan"], max(len(steps), len(row["reference_plan"]))
        length = row["plan_length"]
        values = {
            "validity": verdict.valid,
            "executability": verdict.executable,
            "readable": readable,
            "exact_match": steps == reference,
            "ended": prediction.ended,
            "prefix": verdict.executed_steps / len(steps) if readable else 0,
            "goal": verdict.goals_reached / verdict.goals if readable else 0,
            "lcs": common(reference, steps, False) / longest if readable else 0,
            "lccs": common(reference, steps, True) / longest if readable else 0,
            "lcs_by_reference": common(reference, steps, False) / length if readable else 0,
            "lccs_by_reference": common(reference, steps, True) / length if readable else 0,
            "quality": min(1, length / len(steps)) if verdict.valid else 0,
            "errors": "valid" if verdict.valid else verdict.error.value,
        }
        split, domain = row["split"], row["domain"]
        place = "0-3" if length < 4 else "4-7" if length < 8 else "8+"
        for where in ((split,), (split, "bins", place), (split, "domains", domain)):
            found.setdefault(where, []).append(values)
        found.setdefault((split, "domains", domain, "bins", place), []).append(values)
    checked = 0
    for where, group in found.items():
        cell = results
        for key in where:
            cell = cell[key]
        assert cell["rows"] == len(group)
        for name in ("validity", "executability", "readable", "exact_match", "ended"):
            assert cell[name] == wilson(sum(values[name] for values in group), len(group)), (where, name)
        for name in ("prefix", "goal", "lcs", "lccs", "lcs_by_reference", "lccs_by_reference", "quality"):
            assert cell[name]["mean"] == pytest.approx(sum(values[name] for values in group) / len(group)), name
        counts = {name: count for name, count in cell["errors"].items() if count}
        assert counts == Counter(values["errors"] for values in group)
        checked += 1
    cells = [results] + [domain for split in results.values() for domain in split["domains"].values()]
    n_bins = sum(len(cell["bins"]) for cell in [*results.values(), *cells[1:]])
    assert checked == len(results) + sum(len(split["domains"]) for split in results.values()) + n_bins


def test_plan_results_are_json_and_do_not_depend_on_the_order_of_rows():
    rows, predictions = spoiled_rows()
    results = plan_results(judge_rows(rows, predictions))
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    turned = plan_results(judge_rows(rows[::-1], predictions[::-1]))
    for split, cell in results.items():
        assert turned[split]["validity"] == cell["validity"] and turned[split]["errors"] == cell["errors"]
        assert turned[split]["lccs"] == pytest.approx(cell["lccs"])


@pytest.mark.parametrize("edges", [(), (3, 3), (-1, 4)])
def test_plan_results_refuse_edges_that_do_not_increase(edges):
    with pytest.raises(ConfigError, match="increasing plan lengths"):
        plan_results(judged(RIGHT), edges)


def test_summary_table_shows_domains_where_there_are_several():
    rows, predictions = spoiled_rows()
    table, columns = summary_table(plan_results(judge_rows(rows, predictions)))
    assert [(row["split"], row["domain"]) for row in table] == [
        (split, domain) for split in ("test", "test_longer") for domain in ("all", "blocks", "towers")
    ]
    assert all(set(row) == set(columns) for row in table)
    ((alone,), _) = summary_table(plan_results(judged(RIGHT, SHORT)))
    assert alone["valid"] == "50.0% [9.5%, 90.5%]" and alone["length"] == "1.000" and alone["ended"] == "-"
