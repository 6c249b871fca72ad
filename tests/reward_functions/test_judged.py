"""Groups of a batch: which teach nothing, and what is put in their place."""

import numpy as np
import pytest

from jaxppo.reward_functions.judged import Judged, chosen_groups, of_groups
from jaxppo.rewards import Part, Scores


def judged_of(values, name="a", **more):
    rows = len(values)
    ids = np.arange(rows * 3).reshape(rows, 3)
    texts = [f"{name}{row}" for row in range(rows)]
    scores = Scores(values, {"reward/mean": float(rows)}, {}, None)._replace(**more)
    return Judged([f"p{text}" for text in texts], {"id": texts}, ids, ids % 2 == 0, texts, scores, 1.0)


@pytest.mark.parametrize(
    ("scores", "equal"),
    [
        ([0.0, 0.0, 0.0, 1.0], [True, False]),
        ([1.0, 1.0 + 1e-7, 0.3, 0.2], [True, False]),
        ([None, 0.5, None, None], [True, True]),  # one score alone has nothing to differ from
        ([0.5, None, 0.5, 0.4], [True, False]),
    ],
)
def test_groups_of_one_score_are_found(scores, equal):
    assert judged_of(scores).equal_groups(2).tolist() == equal


@pytest.mark.parametrize(
    ("equal", "chosen"),
    [
        (["ok ok ok"], [0, 1, 2]),
        (["no ok no"], [0, 1, 2]),  # nothing else was sampled
        (["no ok no", "ok ok ok"], [3, 1, 4]),
        (["no ok no", "no no ok"], [5, 1, 2]),
        (["no ok no", "no no ok", "no ok ok"], [5, 1, 7]),
        (["no no no", "no ok no", "no no no", "ok no no"], [4, 9, 2]),
    ],
)
def test_what_teaches_nothing_is_replaced_in_order(equal, chosen):
    flags = [np.array([word == "no" for word in batch.split()]) for batch in equal]
    assert chosen_groups(flags).tolist() == chosen


def test_completions_of_chosen_groups_keep_all_that_belongs_to_them():
    part = Part(0, 1, 0.5)
    first = judged_of([0.0, 0.0, 0.1, 0.2], "a", extras={"verdict": list("wxyz")})
    second = judged_of([0.5, 1.0, 0.0, 0.0], "b", parts=[(part,), (), (), ()], extras={"step": [1, 2, 3, 4]})
    taken = of_groups([first, second], np.array([2, 1]), 2)
    assert (taken.texts, taken.prompts) == (["b0", "b1", "a2", "a3"], ["pb0", "pb1", "pa2", "pa3"])
    assert taken.columns == {"id": ["b0", "b1", "a2", "a3"]}
    assert taken.scores.values == [0.5, 1.0, 0.1, 0.2]
    assert taken.scores.parts == [(part,), (), (), ()]
    assert taken.scores.extras == {"verdict": [None, None, "y", "z"], "step": [1, 2, None, None]}
    assert taken.scores.metrics == {"reward/mean": 4.0}
    np.testing.assert_array_equal(taken.ids, [*second.ids[:2], *first.ids[2:]])
    np.testing.assert_array_equal(taken.mask, [*second.mask[:2], *first.mask[2:]])
    counted = [judged_of([0.0] * 4, metrics={"reward/timeouts": count, "reward/x": count}) for count in (4, 0, 1)]
    assert of_groups(counted, np.array([0, 1]), 2).scores.metrics == {"reward/timeouts": 5, "reward/x": 5 / 3}
    whole = of_groups([first], np.array([0, 1]), 2)
    assert whole.scores.parts is None and whole.texts == first.texts
