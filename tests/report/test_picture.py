import sys

import numpy as np
import pytest
from PIL import Image

from jaxppo.report.picture import plot_curves


def scores(rate, n=1024):
    return {"validity": {"rate": rate, "low": max(rate - 0.03, 0.0), "high": min(rate + 0.03, 1.0), "n": n}}


FULL = [
    {
        "step": step,
        "objective/scores": 1 - 1 / step,
        "reward/plan_valid": 0.5,
        "objective/kl": 0.1 * step,
        "policy/clipfrac_avg": 0.1,
        "value/explained_variance": None if step == 1 else 1 - 3 / step,
        "completions/mean_length": 20.0,
    }
    for step in range(1, 41)
]
BOTH = {
    "headline_split": "longer",
    "before": {"test": scores(0.9), "longer": scores(0.5)},
    "after": {"test": scores(0.92), "longer": scores(0.75)},
}


def picture(folder, metrics, evals):
    path = folder / "run" / "curves.png"
    plot_curves(metrics, evals, path)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.size == (1280, 840)
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("metrics", "evals"),
    [
        (FULL, BOTH),
        (FULL[:1], {"before": {}, "after": {"test": scores(0.0, n=16)}}),
        ([{"step": 1}, {"step": 2, "objective/kl": None}], {}),
        ([], {"after": {"test": {"reward": {"mean": 0.5, "low": None, "high": None, "n": 1}}}}),
    ],
)
def test_plot_curves_draws_what_a_run_has(tmp_path, monkeypatch, metrics, evals):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whose state is that of the caller
    assert picture(tmp_path, metrics, evals).std() > 5


@pytest.mark.full
def test_plot_curves_shows_each_curve_and_bar(tmp_path):
    whole = picture(tmp_path, FULL, BOTH)
    keys = [key for key in FULL[0] if key not in ("step", "completions/mean_length")]
    for missing in keys:
        fewer = [{key: value for key, value in record.items() if key != missing} for record in FULL]
        assert (picture(tmp_path, fewer, BOTH) != whole).any(), missing
    for side in ("before", "after"):
        assert (picture(tmp_path, FULL, {**BOTH, side: {}}) != whole).any(), side


def test_plot_curves_shows_completion_length_where_the_update_reports_no_health(tmp_path):
    plain = [{"step": record["step"]} for record in FULL]
    length = [{"step": record["step"], "completions/mean_length": 20.0} for record in FULL]
    assert (picture(tmp_path, plain, BOTH) != picture(tmp_path, length, BOTH)).any()
