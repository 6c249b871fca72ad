import json
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from jaxppo.report.picture import plot_run


def scores(rate, n=1024):
    return {"validity": {"rate": rate, "low": max(rate - 0.03, 0.0), "high": min(rate + 0.03, 1.0), "n": n}}


CURVES = {
    "objective/scores": [1 - 1 / step for step in range(1, 41)],
    "reward/plan_valid": [0.5] * 40,
    "objective/kl": [0.1 * step for step in range(1, 41)],
    "policy/clipfrac_avg": [0.1] * 40,
    "value/explained_variance": [None, *(1 - 3 / step for step in range(2, 41))],
}
FULL = [{"step": i + 1} | {name: values[i] for name, values in CURVES.items()} for i in range(40)]
BEFORE = {"test": scores(0.9), "longer": scores(0.5)}
BOTH = {"headline_split": "longer", "before": BEFORE, "after": {"test": scores(0.92), "longer": scores(0.75)}}


def plot(folder, metrics, evals):
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in metrics))
    plot_run(folder, evals)


def test_plot_run_writes_a_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whose state is that of the caller
    plot(tmp_path, FULL, BOTH)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.format == "PNG" and image.size == (1280, 840)
        assert np.asarray(image.convert("RGB")).std() > 5


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """From metrics and evaluations to the lines, the heights of the bars and the texts of the picture."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(metrics, evals):
        plot(tmp_path, metrics, evals)
        panels = figures.pop().axes
        lines = [list(line.get_ydata()) for axes in panels[:3] for line in axes.lines]
        bars = [round(bar.get_height(), 3) for bar in panels[3].patches if bar.get_height()]
        return lines, bars, [text.get_text() for axes in panels for text in axes.texts]

    return draw


def test_plot_run_draws_what_a_run_has(drawn):
    lines, bars, texts = drawn(FULL, BOTH)
    for name in CURVES:
        assert [value for value in CURVES[name] if value is not None] in lines, name
    assert bars == [90, 50, 92, 75] and {"90.0", "50.0", "92.0", "75.0"} <= set(texts)
    assert drawn(FULL, {"before": BEFORE})[1] == [90, 50]
    assert drawn([{"step": 1}], {}) == ([], [], ["not measured"] * 4)
    lines, bars, _ = drawn(FULL[:1], {"before": {}, "after": {"test": scores(0.0, n=16)}})
    assert [0.0] in lines and bars == []
    reward = {"reward": {"mean": 0.5, "low": None, "high": None, "n": 1}}
    assert drawn([{"step": 1}, {"step": 2, "objective/kl": None}], {"after": {"test": reward}})[1] == [0.5]
    none = {"reward": {"mean": None, "low": None, "high": None, "n": 0}}
    assert drawn(FULL, {"before": {"test": none}, "after": {"test": reward}})[1] == [0.5]
    assert drawn(FULL, {"before": {"test": none}, "after": {"test": none}})[1] == []
