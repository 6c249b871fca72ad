import pytest

from jaxppo.report.charts import Curve, Part, limits, line_chart, moving_mean, short, stacked_bars, thinned, ticks


def test_moving_mean_by_hand():
    assert moving_mean([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]  # so few values are left as they are
    values = [0.0] * 30 + [1.0] * 15
    keep = 1 - 2 / (45 / 15 + 1)
    means = moving_mean(values)
    assert means[:30] == [0.0] * 30
    expected = (1 - keep) * sum(keep**i for i in range(2)) / (1 - keep**32)
    assert means[31] == pytest.approx(expected)
    # That of a constant is free of bias, and passes over nothing.
    values = [None if i % 3 == 1 else 2.5 for i in range(60)]
    means = moving_mean(values)
    assert [mean is None for mean in means] == [value is None for value in values]
    assert {round(mean, 12) for mean in means if mean is not None} == {2.5}


def test_few_values_are_all_kept_and_numbers_and_ticks_are_short():
    assert thinned([1.0] * 300) == list(range(300))
    values = [0.0 if i != 4321 else 9.0 for i in range(10_000)]
    values[777] = None
    kept = thinned(values)
    assert len(kept) <= 401 and kept == sorted(set(kept))
    assert 4321 in kept and kept[-1] == 9_999
    assert ticks(0, 60) == [0, 20, 40, 60]
    assert ticks(0.38, 0.56) == pytest.approx([0.4, 0.45, 0.5, 0.55])
    texts = {0: "0", 0.125: "0.125", 12_000: "12k", 3e-5: "3e-05", 2.5e6: "2.5M", -0.5: "-0.5", 1234.0: "1234"}
    texts |= {0.0006: "0.0006", 5.5e-4: "5.5e-4"}
    assert {value: short(value) for value in texts} == texts


def test_limits_leave_single_extremes_out_and_take_a_near_band_in():
    low, high = limits([-50.0, *(i / 1000 for i in range(400))])
    assert -0.1 < low <= 0 and 0.39 < high < 0.5
    assert limits([0.0, 1.0], (None, 1.5))[1] > 1.5
    assert limits([0.0, 1.0], (0.0, 30.0))[1] < 2
    assert limits([0.0, 0.0]) == (0.0, pytest.approx(0.5, abs=0.1))
    low, high = limits([256.0] * 9)
    assert low < 256 < high


def test_line_chart_has_values_means_and_band_and_breaks_where_a_value_is_null():
    ys = [float(i % 7) for i in range(60)]
    chart = line_chart([Curve(range(60), ys)], band=(1.0, 3.0))
    assert chart.band == (chart.scale.y(3.0), chart.scale.y(1.0)) and chart.beyond == 0
    (curve,) = chart.data["curves"]
    assert curve["points"] == [
        [i, y, pytest.approx(m, 1e-5)] for i, y, m in zip(range(60), ys, moving_mean(ys), strict=True)
    ]
    values = [1.0, 2.0, None, 3.0, None, None, 4.0, 5.0, 6.0]
    chart = line_chart([Curve(range(9), values)], smooth=False)
    (curve,) = chart.curves
    lines = [line.split() for line in chart.scale.lines(curve.xs, curve.means)]
    assert curve.means == values and [len(line) for line in lines] == [2, 2, 3] and lines[1][0] == lines[1][1]
    assert line_chart([Curve([1], [0.5])], band=(2.0, 3.0)).band is None  # far away


def test_line_chart_counts_what_is_beyond_and_shows_the_spread():
    chart = line_chart([Curve(range(401), [-50.0, *(i / 1000 for i in range(400))])])
    left, right, top, bottom = chart.scale.box
    assert chart.beyond >= 1 and chart.scale.y(-50.0) == bottom and chart.scale.y(9.0) == top
    assert chart.scale.points([0, 400], [-50.0, -50.0]) == f"{left}.0,{bottom}.0 {right}.0,{bottom}.0"
    scale = line_chart([Curve([1, 2, 3], [1.0, 2.0, 3.0], low=[0.5, 1.5, 2.5], high=[1.5, 2.5, 3.5])]).scale
    assert scale.low <= 0.5 and scale.high >= 3.5


def test_stacked_bars_join_many_updates_and_cut_what_is_far_higher():
    parts = [Part("a", [50.0] + [1.0] * 999, "c0"), Part("b", [0.0] * 1000, "c1")]
    chart = stacked_bars(range(1, 1001), parts)
    assert len(chart.bars) == 72 and chart.beyond == 1 and chart.scale.high < 2
    assert chart.bars[0] == (1, 13, [pytest.approx(62 / 13), 0.0])
    few = stacked_bars([1, 2], [Part("a", [1.0, 2.0], "c0")])
    assert few.bars == [(1, 1, [1.0]), (2, 2, [2.0])]
