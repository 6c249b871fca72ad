"""The command: models, files of plans, comparisons, the files it writes and its page."""

import io
import json
from collections import Counter
from contextlib import redirect_stdout
from statistics import fmean

import pytest

from jaxppo.config import EvaluateConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, DataError, ModelError
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.datasets.rows import build_split
from tests.evaluate.small_models import write_spoiled

SPLITS = ("test", "test_longer")
DOMAINS = ("blocks", "towers")
NUM_ROWS = 8  # of a split


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Two splits of the same blocks under two names, so that the shipped model can plan in both domains."""
    folder = tmp_path_factory.mktemp("dataset")
    for seed, split in enumerate(SPLITS):
        rows = build_split("test", sizes={3: 4, 4 + seed: 4}, seed=seed, unique=True)
        named = [row | {"id": f"{split}-{i}", "domain": DOMAINS[i % 2]} for i, row in enumerate(rows)]
        write_jsonl(named, folder / f"{split}.jsonl")
    return folder


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    return write_spoiled(tmp_path_factory.mktemp("models") / "spoiled", 0.03)


def run(folder, dataset, splits=("test",), **settings):
    """The command in this process; returns the folder, what `eval.json` holds, and what it printed."""
    given = {"eval_validator": "builtin", "response_length": 40, "eval_batch_size": 8}
    given |= {"dataset": str(dataset), "eval_splits": splits, "output_dir": str(folder)}
    out = io.StringIO()
    with redirect_stdout(out):
        assert evaluate(replace(EvaluateConfig(), **given | settings)) == folder
    return folder, json.loads((folder / "eval.json").read_text()), out.getvalue()


def records_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows_of(dataset, *splits):
    return [row for split in splits for row in records_of(dataset / f"{split}.jsonl")]


@pytest.fixture(scope="module")
def compared(dataset, spoiled, tmp_path_factory):
    """Two seeds of a model with two samples each, against the spoiled one."""
    return run(
        tmp_path_factory.mktemp("runs") / "compared",
        dataset,
        SPLITS,
        model=("blocksworld-sft", str(spoiled)),
        compare_with=str(spoiled),
        num_samples=2,
        eval_temperature=0.7,
        label="both",
    )


@pytest.fixture(scope="module")
def greedy(dataset, spoiled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "greedy"
    return run(folder, dataset, model=("blocksworld-sft", str(spoiled)))


@pytest.fixture(scope="module")
def regrounded(dataset, spoiled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "regrounded"
    return run(folder, dataset, model=(str(spoiled),), decoder="reground")


def test_evaluate_measures_every_answer_of_several_models(compared, dataset):
    folder, results, out = compared
    records = records_of(folder / "samples.jsonl")
    assert Counter(record["id"] for record in records) == {row["id"]: 4 for row in rows_of(dataset, *SPLITS)}
    assert Counter(record["seed"] for record in records) == {0: 32, 1: 32}
    for split in SPLITS:
        own = [record for record in records if record["split"] == split]
        assert results[split]["validity"]["rate"] == pytest.approx(fmean(record["valid"] for record in own))
        assert results[split]["validity"]["n"] == NUM_ROWS and results[split]["answers"] == len(own) == 4 * NUM_ROWS
        for domain in DOMAINS:
            rate = fmean(record["valid"] for record in own if record["domain"] == domain)
            assert results[split]["domains"][domain]["validity"]["rate"] == pytest.approx(rate)
        by_seed = {str(s): fmean(r["valid"] for r in own if r["seed"] == s) for s in (0, 1)}
        assert results[split]["validity_by_seed"] == pytest.approx(by_seed)
        assert set(results[split]["pass_at_k"]) == {"1", "2"}
        assert set(results[split]["bins"]) <= {"0-4", "5-8", "9-12", "13-16", "17-24"}
        assert results[split]["validator"] == "builtin"
    assert next(line for line in out.splitlines() if line.startswith("split")).endswith("pass@2")
    line = next(line for line in out.splitlines() if line.startswith("test_longer  towers"))
    towers = results["test_longer"]["domains"]["towers"]["pass_at_k"]["2"]["mean"]
    assert line.split()[-1] == f"{towers:.3f}"
    assert 0.1 < fmean(record["valid"] for record in records) < 0.95  # else much of this would hold of anything
    assert len({record["completion"] for record in records}) > 30


def test_evaluate_compares_on_the_same_problems(compared, spoiled):
    folder, results, out = compared
    first, second = records_of(folder / "samples.jsonl"), records_of(folder / "samples_compared.jsonl")
    # The seed of the same model decides: alone it answers as it does as one of several.
    again = [(record["id"], record["completion"]) for record in first if record["seed"] == 1]
    assert sorted(again) == sorted((record["id"], record["completion"]) for record in second)
    for split in SPLITS:
        names = {record["id"] for record in first if record["split"] == split}
        differences = [
            fmean(r["valid"] for r in first if r["id"] == name) - fmean(r["valid"] for r in second if r["id"] == name)
            for name in names
        ]
        result = results["comparison"][split]
        assert result["difference"]["mean"] == pytest.approx(fmean(differences))
        assert result["a_better"] == sum(value < 0 for value in differences)
        assert result["b_better"] == sum(value > 0 for value in differences)
        assert result["test"] == "z" and set(result["domains"]) == set(DOMAINS)  # 4 answers against 2
    assert results["compared_with"]["label"] == "/".join(spoiled.parts[-2:])
    assert results["compared_with"]["results"]["test"]["answers"] == 2 * NUM_ROWS
    assert str(folder / "eval.html") in out


def test_evaluate_leaves_a_finished_folder_as_it_is(compared):
    folder = compared[0]
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert set(before) == {"config.yaml", "eval.html", "eval.json", "samples.jsonl", "samples_compared.jsonl"}
    resume = ["--output_dir", str(folder), "--resume"]
    evaluate(parse_cli(EvaluateConfig, "evaluate", resume))
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    with pytest.raises(ConfigError, match="num_samples"):
        evaluate(parse_cli(EvaluateConfig, "evaluate", [*resume, "--num_samples", "1"]))


def test_samples_of_one_evaluation_are_plans_for_the_next(compared, dataset, tmp_path):
    folder, first, _ = compared
    plans = str(folder / "samples.jsonl")
    settings = {"plans": plans, "compare_with": plans}
    _, results, out = run(tmp_path / "again", dataset, SPLITS, **settings)
    for split in SPLITS:
        assert "mean_tokens" not in results[split]  # a file does not tell
        assert results[split] == {name: value for name, value in first[split].items() if name != "mean_tokens"}
        comparison = results["comparison"][split]
        assert comparison["tied"] == NUM_ROWS and comparison["p_value"] == 1.0
    assert results["compared_with"]["label"] == "compared/samples.jsonl (compared)" and "(compared) (A)" in out


def test_the_page_names_a_decoder_that_looks_at_the_state(regrounded):
    folder, results, _ = regrounded
    assert results["test"]["mean_tokens"] > 0.0
    assert "decoder reground" in (folder / "eval.html").read_text()


def test_eval_rows_asks_about_some_rows_with_the_answers_that_they_have_among_all(
    compared, regrounded, dataset, spoiled, tmp_path
):
    model = {"model": (str(spoiled),)}
    validity = {}
    for settings, every in (
        ({"num_samples": 2, "eval_temperature": 0.7}, compared[0] / "samples_compared.jsonl"),
        ({"decoder": "reground"}, regrounded[0] / "samples.jsonl"),
    ):
        few, results, _ = run(tmp_path / f"few of {every.name}", dataset, eval_rows=4, **model, **settings)
        asked = records_of(few / every.name.replace("_compared", ""))
        ids = {record["id"] for record in asked}
        assert asked == [one for one in records_of(every) if one["split"] == "test" and one["id"] in ids]
        assert [domain["rows"] for domain in results["test"]["domains"].values()] == [2, 2]
        validity[every.name] = results["test"]["validity"]
    _, of_file, _ = run(tmp_path / "file", dataset, eval_rows=4, plans=str(regrounded[0] / "samples.jsonl"))
    assert of_file["test"]["validity"] == validity["samples.jsonl"]


def plans_file(path, rows, plan=lambda row: row["reference_plan"]):
    write_jsonl([{"id": row["id"], "plan": plan(row)} for row in rows], path)
    return str(path)


def test_plans_of_other_rows_are_refused(dataset, tmp_path):
    plans = plans_file(tmp_path / "plans.jsonl", rows_of(dataset, *SPLITS)[1:])
    with pytest.raises(DataError, match=r"test-0\b.*test_longer-0"):
        run(tmp_path / "run", dataset, plans=plans)
    assert not (tmp_path / "run").exists()


def test_rows_that_a_model_leaves_out_are_left_out_of_a_file_too(dataset, tmp_path):
    rows = rows_of(dataset, "test")
    tokens = [len(row["prompt"].split()) for row in rows]
    settings = {"max_prompt_length": max(tokens) - 1}
    fitting = sum(n < max(tokens) for n in tokens)
    assert 0 < fitting < NUM_ROWS
    plans = plans_file(tmp_path / "plans.jsonl", rows)
    folder, results, _ = run(tmp_path / "run", dataset, compare_with=plans, **settings)
    assert results["test"]["validity"]["n"] == results["comparison"]["test"]["n"] == fitting
    without_others = str(folder / "samples.jsonl")
    _, results, _ = run(tmp_path / "again", dataset, compare_with=without_others, **settings)
    assert results["comparison"]["test"]["n"] == fitting


def test_what_is_wrong_is_found_out_before_the_first_answer(dataset, spoiled, tmp_path, monkeypatch):
    rows = rows_of(dataset, "test")
    plans = plans_file(tmp_path / "plans.jsonl", rows)
    (tmp_path / "broken").mkdir()
    (tmp_path / "twice").mkdir()
    write_jsonl([*rows, rows[0]], tmp_path / "twice" / "test.jsonl")
    for error, named, data, splits, settings in (
        (ModelError, "nowhere", dataset, ("test",), {"compare_with": "nowhere"}),
        (ModelError, "broken", dataset, ("test",), {"compare_with": str(tmp_path / "broken")}),
        (DataError, rows[0]["id"], tmp_path / "twice", ("test",), {"compare_with": str(spoiled)}),
        (DataError, "test_larger", dataset, ("test", "test_larger"), {"plans": plans}),
    ):
        with pytest.raises(error, match=named):
            run(tmp_path / "run", data, splits, **settings)
    left_out = []

    def without_one_more(tokenizer, rows, *_):
        left_out.append(1)
        return rows[len(left_out) - 1 :]

    with monkeypatch.context() as patch:
        patch.setattr("jaxppo.data.without_overlong", without_one_more)
        with pytest.raises(DataError, match="max_prompt_length"):
            run(tmp_path / "run", dataset, model=("blocksworld-sft", str(spoiled)))
    assert not (tmp_path / "run").exists()


REWARD = """
def words(prompts, completions, **_):
    return [float(len(text.split())) for text in completions]
"""


@pytest.mark.full
def test_data_without_plans_are_scored(dataset, spoiled, tmp_path, monkeypatch):
    (tmp_path / "evaluate_rewards.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_jsonl([{"prompt": row["prompt"]} for row in rows_of(dataset, "test")], tmp_path / "test.jsonl")
    settings = {"model": ("blocksworld-sft", str(spoiled)), "num_samples": 2, "eval_temperature": 0.7}
    folder, results, out = run(tmp_path / "run", tmp_path, reward_funcs=("evaluate_rewards:words",), **settings)
    records = records_of(folder / "samples.jsonl")
    assert len(records) == 4 * NUM_ROWS and {record["seed"] for record in records} == {0, 1}
    assert all(record["score"] == len(record["completion"].split()) for record in records)
    by_row = [[r["score"] for r in records if r["id"] == name] for name in dict.fromkeys(r["id"] for r in records)]
    assert results["test"]["mean_reward"] == pytest.approx(fmean(map(fmean, by_row)))
    assert results["test"]["reward"]["n"] == NUM_ROWS and results["test"]["ended"]["samples"] == 4 * NUM_ROWS
    assert "mean reward" in out and not (folder / "eval.html").exists()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("eval_temperature", {"num_samples": 2}),
        ("num_samples", {"num_samples": 0}),
        ("num_samples", {"plans": "p.jsonl", "num_samples": 2, "eval_temperature": 1.0}),
        ("plans", {"plans": "p.jsonl", "model": "m"}),
        ("compare_with", {"compare_with": ("a", "b.jsonl")}),
        ("compare_with", {"plans": "p.csv", "compare_with": ("m",)}),
        ("compare_label", {"compare_label": "x"}),
        ("target", {"dry_run": True, "target": "tpu-v5e-1"}),
        ("decoder", {"plans": "p.jsonl", "decoder": "reground"}),
        ("decoder", {"decoder": "reground", "eval_temperature": 1.0}),
        ("decoder", {"decoder": "reground", "reward_funcs": ("sentiment",)}),
        ("eval_splits", {"eval_splits": ("a", "a")}),
        ("eval_splits", {"eval_splits": ("comparison",)}),
        ("length_edges", {"length_edges": (5, 5)}),
        ("length_edges", {"length_edges": (-1, 5)}),
        ("eval_rows", {"eval_rows": 0}),
        ("eval_rows", {"plans": "p.csv", "eval_rows": 4}),
        ("reward_funcs", {"compare_with": ("m",), "reward_funcs": ("sentiment",)}),
        ("reward_funcs", {"plans": "p.jsonl", "reward_funcs": ("sentiment",)}),
        ("pddl_dir", {"pddl_dir": "x"}),
        ("columns", {"columns": "plan=a"}),
        ("extract", {"extract": "last"}),
    ],
)
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(ConfigError, match=rf"\b{name}\b"):
        replace(EvaluateConfig(), **settings)


def test_dry_run_writes_nothing(dataset, spoiled, tmp_path):
    out = io.StringIO()
    settings = {"dataset": str(dataset), "eval_splits": SPLITS, "output_dir": str(tmp_path / "run"), "dry_run": True}
    with redirect_stdout(out):
        evaluate(replace(EvaluateConfig(), **settings, compare_with=str(spoiled), eval_validator="builtin"))
    assert all(name in out.getvalue() for name in ("blocksworld-sft", str(spoiled), *SPLITS))
    assert not (tmp_path / "run").exists()
