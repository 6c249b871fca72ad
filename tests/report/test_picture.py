import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from jaxppo.report.picture import plot_curves


def scores(rate, n=1024):
    return {"validity": {"rate": rate, "low": max(rate - 0.03, 0.0), "high": min(rate + 0.03, 1.0), "n": n}}


CURVES = {
    "objective/scores": [1 - 1 / step for step in range(1, 41)],
    "reward/plan_valid": [0.5] * 40,
    "objective/kl": [0.1 * step for step in range(1, 41)],
    "policy/clipfrac_avg": [0.1] * 40,
    "value/explained_variance": [None, *(1 - 3 / step for step in range(2, 41))],
    "completions/mean_length": [20.0 + step for step in range(1, 41)],
}
FULL = [{"step": i + 1} | {name: values[i] for name, values in CURVES.items()} for i in range(40)]
BEFORE = {"test": scores(0.9), "longer": scores(0.5)}
BOTH = {"headline_split": "longer", "before": BEFORE, "after": {"test": scores(0.92), "longer": scores(0.75)}}


def test_plot_curves_writes_a_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whose state is that of the caller
    path = tmp_path / "run" / "curves.png"
    plot_curves(FULL, BOTH, path)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.size == (1280, 840)
        assert np.asarray(image.convert("RGB")).std() > 5


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """From metrics and evaluations to the lines, the heights of the bars and the texts of the picture."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(metrics, evals):
        plot_curves(metrics, evals, tmp_path / "curves.png")
        panels = figures.pop().axes
        lines = [list(line.get_ydata()) for axes in panels[:3] for line in axes.lines]
        bars = [round(bar.get_height(), 3) for bar in panels[3].patches if bar.get_height()]
        return lines, bars, [text.get_text() for axes in panels for text in axes.texts]

    return draw


def test_plot_curves_draws_what_a_run_has(drawn):
    lines, bars, texts = drawn(FULL, BOTH)
    for name in CURVES.keys() - {"completions/mean_length"}:
        assert [value for value in CURVES[name] if value is not None] in lines, name
    assert bars == [90, 50, 92, 75] and {"90.0", "50.0", "92.0", "75.0"} <= set(texts)
    assert drawn(FULL, {"before": BEFORE})[1] == [90, 50]
    lengths = [{name: record[name] for name in ("step", "completions/mean_length")} for record in FULL]
    lines, bars, texts = drawn(lengths, {})  # in place of the health of updates, which are not reported
    assert CURVES["completions/mean_length"] in lines and bars == [] and texts == ["not measured"] * 3
    lines, bars, _ = drawn(FULL[:1], {"before": {}, "after": {"test": scores(0.0, n=16)}})
    assert [0.0] in lines and bars == []
    reward = {"reward": {"mean": 0.5, "low": None, "high": None, "n": 1}}
    assert drawn([{"step": 1}, {"step": 2, "objective/kl": None}], {"after": {"test": reward}})[1] == [0.5]
    none = {"reward": {"mean": None, "low": None, "high": None, "n": 0}}
    assert drawn(FULL, {"before": {"test": none}, "after": {"test": reward}})[1] == [0.5]
    assert drawn(FULL, {"before": {"test": none}, "after": {"test": none}})[1] == []
