import re

import pytest

from jaxppo.report.checks import band_text, concerns
from jaxppo.report.run_data import read_run
from tests.report_runs import record, splits, write_run


def run_with(tmp_path, change, updates=40, **more):
    """A run whose updates are healthy, but for what `change` makes of the share of the run that is done."""
    records = [record(step, updates) | change(step / updates) for step in range(1, updates + 1)]
    return read_run(write_run(tmp_path / "run", records=records, **more))


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (lambda share: {}, {"before": splits(0.3), "after": splits(0.6)}),
        (lambda share: {}, {"before": splits(0.6), "after": splits(0.55)}),  # by chance
        (lambda share: {"policy/approxkl_avg": 0.01 * (1 - share)}, {}),  # with the learning rate
        (lambda share: {"objective/scores": 0.4}, {"updates": 4}),  # too few for a trend
        (lambda share: {}, {"updates": 0}),
        (lambda share: {"policy/approxkl_avg": 0.0}, {"num_ppo_epochs": 1, "num_mini_batches": 1}),
        # Completions are cut on purpose.
        (lambda share: {"completions/clipped_ratio": 1.0}, {"stop_token": "none", "missing_eos_penalty": None}),
        (lambda share: {"completions/clipped_ratio": 1.0}, {"output_min_length": 4, "missing_eos_penalty": None}),
    ],
)
def test_a_healthy_run_is_of_no_concern(tmp_path, change, settings):
    assert concerns(run_with(tmp_path, change, **settings)) == []


@pytest.mark.parametrize(
    ("change", "what", "advice"),
    [
        (lambda share: {"objective/kl": 60 * share}, "`objective/kl` .*57, above 30", "kl_coef"),
        (lambda share: {"policy/approxkl_avg": 1e-6}, "`policy/approxkl_avg` .*below 0.0001", "Raise `learning_rate`"),
        (lambda share: {"completions/clipped_ratio": 0.5}, "`completions/clipped_ratio` .*0.05", "response_length"),
        (lambda share: {"objective/scores": 0.4}, "flat", "objective/scores_std"),
        (lambda share: {"objective/scores": 0.8 - 0.4 * share}, "`objective/scores` .*0.79 .*0.42", "learning_rate"),
        (lambda share: {"objective/scores_std": 0.0}, "`objective/scores_std`", "temperature"),
        (lambda share: {"policy/entropy_avg": max(0.01, 1 - share)}, "`policy/entropy_avg`", "entropy_coef"),
        (lambda share: {"value/explained_variance": -0.5}, "`value/explained_variance`", "value_learning_rate"),
        (lambda share: {"eval/test/loss": 1.0 + share}, "`eval/test/loss` .*rising", "earlier checkpoint"),
        (lambda share: {"policy/nonfinite_steps": int(share == 0.5)}, "`policy/nonfinite_steps` .*1", "max_grad_norm"),
        (lambda share: {"reward/overlong": 0.3}, "`reward/overlong` .*0.25 in 40", ""),
        (lambda share: {"objective/kl_k1": -2.0}, r"`objective/kl_k1` .*-1 in 40 .*\(-2\)", "top_k"),
    ],
)
def test_each_concern_is_found_alone_with_what_to_do(tmp_path, change, what, advice):
    (found,) = concerns(run_with(tmp_path, change))
    assert re.search(what, found.finding) and advice in found.advice and found.advice


def test_a_result_that_is_worse_beyond_chance_is_a_concern_and_bands_are_said_in_words(tmp_path):
    (found,) = concerns(run_with(tmp_path, lambda share: {}, before=splits(0.6), after=splits(0.3)))
    assert "`test`" in found.finding
    texts = [band_text(band) for band in ((0.0, 30.0), (-1.0, None), (None, 0.5), (0.0, 0.0))]
    assert texts == ["0 to 30", "at least -1", "at most 0.5", "0"]
