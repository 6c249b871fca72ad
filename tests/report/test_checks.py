import pytest

from jaxppo.report.checks import band_text, concerns, known_end
from jaxppo.report.run_data import read_run
from tests.report_runs import record, splits, write_run


def run_with(tmp_path, change, updates=40, **more):
    """A run whose updates are healthy, but for what `change` makes of the share of the run that is done."""
    records = [record(step, updates) | change(step / updates) for step in range(1, updates + 1)]
    return read_run(write_run(tmp_path / "run", records=records, **more))


def test_a_healthy_run_is_of_no_concern(tmp_path):
    assert concerns(run_with(tmp_path, lambda share: {}, before=splits(0.3), after=splits(0.6))) == []


@pytest.mark.parametrize(
    ("change", "what", "advice"),
    [
        (lambda share: {"objective/kl": 60 * share}, "`objective/kl` ends at 57", "kl_coef"),
        (lambda share: {"policy/approxkl_avg": 1e-6}, "on the whole, below 0.0001", "Raise `learning_rate`"),
        (lambda share: {"policy/approxkl_avg": 0.1}, "above 0.02", "Lower `learning_rate`"),
        (lambda share: {"completions/clipped_ratio": 0.5}, "above 0.05", "Raise `response_length`"),
        (lambda share: {"objective/scores": 0.4}, "The reward is flat", "objective/scores_std"),
        (
            lambda share: {"objective/scores": 0.8 - 0.4 * share},
            "`objective/scores` is falling: 0.79 at first, 0.42 at last",
            "Lower `learning_rate`",
        ),
        (
            lambda share: {"objective/scores_std": 0.0},
            "`objective/scores_std` is near 0",
            "All completions score the same: choose prompts that are solved sometimes, or raise `temperature`",
        ),
        (
            lambda share: {"policy/entropy_avg": max(0.01, 1 - share)},
            "`policy/entropy_avg` is below a tenth",
            "Exploration has ended: lower `learning_rate`, or raise `kl_coef` or `entropy_coef`",
        ),
        (
            lambda share: {"value/explained_variance": -0.5},
            "`value/explained_variance` is below 0 for long",
            "less than a constant would: raise `value_learning_rate`",
        ),
        (
            lambda share: {"policy/nonfinite_steps": int(share == 0.5)},
            "`policy/nonfinite_steps` was above 0 in 1 update",
            "max_grad_norm",
        ),
        (
            lambda share: {"reward/val_disagreements": int(share == 0.5)},
            "`reward/val_disagreements` was above 0 in 1 update (1)",
            "report the cases",
        ),
        (lambda share: {"reward/overlong": 0.3}, "`reward/overlong` was above 0.25 in 40 updates", "gamed"),
        (lambda share: {"objective/kl_k1": -2.0}, "`objective/kl_k1` was below -1 in 40 updates (-2)", "top_k"),
    ],
)
def test_each_concern_is_found_alone_with_what_to_do(tmp_path, change, what, advice):
    (found,) = concerns(run_with(tmp_path, change))
    assert what in found.what and advice in found.advice


def test_a_result_that_is_worse_beyond_chance_is_a_concern(tmp_path):
    (found,) = concerns(run_with(tmp_path, lambda share: {}, before=splits(0.6), after=splits(0.3)))
    assert "`test` is worse than before" in found.what
    assert concerns(run_with(tmp_path / "b", lambda share: {}, before=splits(0.6), after=splits(0.55))) == []


def test_a_learning_rate_that_falls_to_nothing_is_no_concern(tmp_path):
    change = lambda share: {"policy/approxkl_avg": 0.01 * (1 - share)}  # noqa: E731
    assert concerns(run_with(tmp_path, change)) == []


def test_trends_need_enough_updates(tmp_path):
    assert concerns(run_with(tmp_path, lambda share: {"objective/scores": 0.4}, updates=4)) == []
    assert concerns(read_run(write_run(tmp_path / "empty", updates=0))) == []


def test_bands_in_words():
    assert [band_text(band) for band in ((0.0, 30.0), (-1.0, None), (None, 0.5), (0.0, 0.0))] == [
        "0 to 30", "at least -1", "at most 0.5", "0",
    ]  # fmt: skip
    assert known_end([None, *range(100)]) == list(range(90, 100))


def test_completions_that_are_cut_on_purpose_are_of_no_concern(tmp_path):
    change = lambda share: {"completions/clipped_ratio": 1.0}  # noqa: E731
    assert concerns(run_with(tmp_path / "cut", change, stop_token="none", missing_eos_penalty=None)) == []
    assert concerns(run_with(tmp_path / "drawn", change, output_min_length=4, missing_eos_penalty=None)) == []
    assert len(concerns(run_with(tmp_path / "plain", change))) == 1
