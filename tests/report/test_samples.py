import pytest

from jaxppo.errors import DataError
from jaxppo.report.samples import read_samples
from jaxppo.run.jsonl import JsonlLog
from tests.report_runs import HOSTILE, SNEAKY, sample


def written(tmp_path, samples):
    path = tmp_path / "samples.jsonl"
    with JsonlLog(path) as log:
        for one in samples:
            log.append(one)
    return path


def test_read_samples_keeps_texts_as_texts(tmp_path):
    found = read_samples(written(tmp_path, [sample(1, completion=SNEAKY, note=HOSTILE, lccs=0.123456, score=None)]))
    ((one,),) = [update["samples"] for update in found.updates]
    assert one["completion"] == "up\\u202edown\\x1b[31m\\u200bend\\x00"
    assert one["more"] == {"note": HOSTILE, "lccs": "0.1235"} and one["score"] is None
    assert (found.total, found.shown, found.total_updates) == (1, 1, 1)


def test_read_samples_prefers_prompts_that_come_again_and_says_what_it_leaves_out(tmp_path):
    samples = [sample(step, f"only {step} {i}") for step in (1, 2, 3) for i in range(20)]
    samples += [sample(step, "again", completion=f"of {step}") for step in (1, 3)]
    found = read_samples(written(tmp_path, samples))
    assert (found.total, found.shown, found.total_updates) == (62, 36, 3)
    again = [[s["completion"] for s in update["samples"] if s["id"] == "again"] for update in found.updates]
    assert again == [["of 1"], [], ["of 3"]]


def test_read_samples_counts_the_outcomes_of_all(tmp_path):
    verdicts = ["valid", "goal not reached: (lit b)", "precondition at step 3: (have c)", "syntax at step 1"]
    verdicts += ["POSITIVE", 7]
    samples = [sample(5, f"p{i}", verdict=verdict) for i, verdict in enumerate(verdicts * 10)]
    found = read_samples(written(tmp_path, samples))
    assert found.outcomes == {5: {"valid": 10, "goal_not_reached": 10, "precondition": 10, "syntax": 10}}


def test_read_samples_of_a_long_run_with_long_texts_stays_small(tmp_path):
    long = "x" * 50_000
    samples = [sample(step, f"p{i}", completion=long) for step in range(1, 101) for i in range(3)]
    found = read_samples(written(tmp_path, samples))
    steps = [update["step"] for update in found.updates]
    assert len(steps) == 40 and (steps[0], steps[-1]) == (1, 100)
    assert found.total == 300 and found.total_updates == 100
    texts = [s["completion"] for update in found.updates for s in update["samples"]]
    assert sum(map(len, texts)) < 2_100_000 and all(text.endswith("[+46000 characters]") for text in texts)
    assert all(update["samples"] for update in found.updates)


def test_read_samples_of_no_file_and_of_a_damaged_one(tmp_path):
    assert read_samples(tmp_path / "none.jsonl").total == 0
    path = written(tmp_path, [sample(1)])
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(DataError, match=r"samples\.jsonl:2"):
        read_samples(path)
