"""Prompts drawn by their success: shares, estimates and limits against plain loops, and a run that is cut anywhere."""

import math

import numpy as np
import pytest

from jaxppo.data import PromptData, SuccessCurriculum
from jaxppo.data.curriculum import domain_numbers, plan_lengths
from jaxppo.types import Curriculum
from tests.run.states import assert_equal_bits

LENGTHS = np.array([3, 2, 2, 6, 2, 4, 8, 4, 2, 6, 4, 2], np.int32)
ONE_DOMAIN = np.zeros(12, np.int32)
TWO_DOMAINS = np.array([0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0], np.int32)
DOMAINS = pytest.mark.parametrize("domains", [ONE_DOMAIN, TWO_DOMAINS], ids=["one domain", "two domains"])
G = 4


def make(
    lengths=LENGTHS, domains=ONE_DOMAIN, *, seed=0, batch_size=G, success=1.0, threshold=0.8, async_rollouts=False
):
    options = {"seed": seed, "success": success, "threshold": threshold, "async_rollouts": async_rollouts}
    return SuccessCurriculum(lengths=lengths, domains=domains, batch_size=batch_size, **options)


def state_of(successes, trials, limits=(99,), rows=()):
    return Curriculum(
        np.array(successes, np.float32),
        np.array(trials, np.float32),
        np.zeros((len(limits), 2), np.float32),
        np.array(limits, np.int32),
        np.array(rows, np.int32),
    )


def estimates_by_hand(successes, trials, lengths, domains):
    """Estimate of each row: of its own tries, and of two with the success of all rows of its domain and length."""
    s, n, of_kind = list(map(float, successes)), list(map(float, trials)), {}
    kinds = [(domain, 0 if lengths is None else lengths[row]) for row, domain in enumerate(domains)]
    for row, kind in enumerate(kinds):
        top, bottom = of_kind.get(kind, (1.0, 2.0))
        of_kind[kind] = top + s[row], bottom + n[row]
    return [(s[row] + 2 * of_kind[kind][0] / of_kind[kind][1]) / (n[row] + 2) for row, kind in enumerate(kinds)]


def shares_by_hand(known, lengths, domains):
    """What a batch of one prompt has for each row."""
    shares, of_domain = [], {}
    for row, p in enumerate(estimates_by_hand(known.successes, known.trials, lengths, domains)):
        too_long = lengths is not None and lengths[row] > known.limits[domains[row]]
        shares.append(0.0 if too_long else p * (1 - p))
        of_domain[domains[row]] = of_domain.get(domains[row], 0.0) + shares[-1]
    return [share / of_domain[domain] / len(of_domain) for share, domain in zip(shares, domains, strict=True)]


CASES = {
    "untried": (state_of([0] * 12, [0] * 12), ONE_DOMAIN),
    "tried": (state_of(range(12), [11] * 12), ONE_DOMAIN),
    "short plans": (state_of(range(12), [11] * 12, limits=[2]), ONE_DOMAIN),
    "fewer than a batch": (state_of([0, 3] * 6, [3] * 12, limits=[2]), ONE_DOMAIN),
    "two domains": (state_of(range(12), [11] * 12, limits=[2, 4]), TWO_DOMAINS),
}


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["lengths", "no lengths"])
@pytest.mark.parametrize(("known", "domains"), CASES.values(), ids=CASES)
def test_rows_are_drawn_as_often_as_their_share_says(known, domains, lengths):
    curriculum, steps = make(lengths, domains, batch_size=7), 500
    shares = shares_by_hand(known, lengths, domains)
    total = np.zeros(12)
    for step in range(steps):
        counts = np.bincount(curriculum.draw(known, step).rows, minlength=12)
        for count, share in zip(counts, shares, strict=True):
            assert math.floor(7 * share - 1e-9) <= count <= math.ceil(7 * share + 1e-9)
        of_domains = np.bincount(domains, counts)
        assert of_domains.max() - of_domains.min() <= 1
        total += counts
    # Counts of a step are 0 or 1 beyond the whole part: their mean has a standard error of at most 1/2 / sqrt(steps).
    np.testing.assert_allclose(total / steps, 7 * np.array(shares), atol=4 * 0.5 / math.sqrt(steps))


def test_what_is_drawn_depends_on_seed_step_and_estimates_alone():
    known, untried = CASES["tried"][0], CASES["untried"][0]

    def draw(seed=0, step=5, known=known):
        return make(seed=seed).draw(known, step).rows.tolist()

    assert draw() == draw() and draw(step=6) != draw() != draw(seed=1)
    assert make().draw(known, 5).rows.dtype == np.int32
    assert draw(known=untried) != draw()
    # The domains of a batch are mixed.
    curriculum = make(domains=TWO_DOMAINS)
    of_draws = [TWO_DOMAINS[curriculum.draw(curriculum.start(), step).rows].tolist() for step in range(20)]
    assert all(sum(numbers) == G // 2 for numbers in of_draws)
    assert len({*map(tuple, of_draws)}) > 2


def by_hand(known, scores, lengths, domains, success, threshold, batch_size):
    """One update: counts, recent shares and limits, completion by completion."""
    copies, num_domains = len(scores) // batch_size, len(known.limits)
    wins, tries = {}, {}
    for place, score in enumerate(scores):
        row = int(known.rows[place // copies])
        if score is not None:
            tries[row] = tries.get(row, 0) + 1
            wins[row] = wins.get(row, 0) + (score >= success)
    s, n = list(map(float, known.successes)), list(map(float, known.trials))
    recent = [[0.8 * float(number) for number in of_domain] for of_domain in known.recent]
    estimates = estimates_by_hand(s, n, lengths, domains)
    for row in tries:
        p = estimates[row]
        of_domain = recent[domains[row]]
        of_domain[0], of_domain[1] = of_domain[0] + wins[row] / (p * (1 - p)), of_domain[1] + tries[row] / (p * (1 - p))
        s[row], n[row] = 0.8 * s[row] + wins[row], 0.8 * n[row] + tries[row]
    shares, limits = [top / bottom if bottom else 0.0 for top, bottom in recent], list(map(int, known.limits))
    for domain in range(num_domains):
        of_domain = [] if lengths is None else lengths[domains == domain]
        longer = sorted(length for length in of_domain if length > limits[domain])
        if longer and shares[domain] >= threshold:
            limits[domain] = longer[min(math.ceil(batch_size / num_domains), len(longer)) - 1]
            recent[domain] = [0.0, 0.0]
    return s, n, recent, limits, shares


@DOMAINS
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["lengths", "no lengths"])
def test_counts_and_limits_are_those_of_a_loop(lengths, copies, domains):
    curriculum, rng = make(lengths, domains, success=0.5, threshold=0.6), np.random.default_rng(3)
    known = curriculum.start()
    seen = [known.limits.tolist()]
    for step in range(40):
        scores = [None if rng.random() < 0.1 else float(rng.random() < 0.7) for _ in range(G * copies)]
        scores[0] = 0.5  # just a success
        s, n, recent, limits, shares = by_hand(known, scores, lengths, domains, 0.5, 0.6, G)
        before, (known, metrics) = known, curriculum.update(known, scores, step)
        np.testing.assert_allclose(known.successes, s, rtol=1e-6)
        np.testing.assert_allclose(known.trials, n, rtol=1e-6)
        np.testing.assert_allclose(known.recent, recent, rtol=1e-6)
        assert known.limits.tolist() == limits
        np.testing.assert_array_equal(known.rows, curriculum.draw(known, step + 1).rows)
        allowed = [i for i in range(12) if lengths is None or lengths[i] <= before.limits[domains[i]]]
        of_rows = estimates_by_hand(s, n, lengths, domains)
        p = [of_rows[i] for i in allowed]
        expected = {
            "curriculum/mean_estimate": sum(p) / len(p),
            "curriculum/between": sum(0.2 <= each <= 0.8 for each in p) / len(p),
            "curriculum/recent_success": sum(shares) / len(shares),
        } | ({} if lengths is None else {"curriculum/plan_length": sum(before.limits) / len(before.limits)})
        assert metrics == pytest.approx(expected, rel=1e-6)
        seen.append(limits)
    for domain, of_domain in enumerate(zip(*seen, strict=True)):
        longest = -1 if lengths is None else max(lengths[domains == domain])
        assert sorted(of_domain) == list(of_domain) and of_domain[-1] == longest
        assert of_domain[0] == (-1 if lengths is None else 2)


@pytest.mark.parametrize("ahead", [False, True])
def test_longer_plans_come_in_once_those_before_were_tried(ahead):
    """With `ahead` a batch is drawn before the plans come in that the batch before it has earned."""
    lengths = np.repeat(np.arange(2, 11, 2), 8).astype(np.int32)
    curriculum = make(lengths, np.zeros(40, np.int32), batch_size=8, async_rollouts=ahead)
    known, tried = curriculum.start(), set()
    for step in range(30):
        of_batch = lengths[known.rows]
        tried |= {*of_batch.tolist()}
        known, _ = curriculum.update(known, [float(length == 2) for length in of_batch], step)
    assert tried == {2, 4} and known.limits.tolist() == [4]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_prompts_come_from_what_was_known_when_they_were_drawn(ahead):
    curriculum, differing = make(None, batch_size=8, async_rollouts=ahead), 0
    known = curriculum.start()
    for step in range(40):
        before = known
        known, _ = curriculum.update(known, [1.0, 0.0, 1.0, 1.0] * 2, step)
        early, late = (curriculum.draw(source, step + 1).rows.tolist() for source in (before, known))
        assert known.rows.tolist() == (early if ahead else late)
        differing += early != late
    assert differing > 10


def test_what_is_kept_is_float32_and_goes_on_exactly():
    """A checkpoint between any two updates changes nothing."""
    curriculum, rng = make(threshold=0.5), np.random.default_rng(0)
    scores = rng.integers(0, 2, (12, 8)).astype(float).tolist()
    whole = [curriculum.start()]
    for step, of_step in enumerate(scores):
        whole.append(curriculum.update(whole[-1], of_step, step)[0])
    assert {array.dtype.name for array in whole[-1]} == {"float32", "int32"}
    for cut in range(12):
        arrays = [np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for a in whole[cut]]
        known = Curriculum(*arrays)
        for step in range(cut, 12):
            known, _ = make(threshold=0.5).update(known, scores[step], step)
        assert_equal_bits(known, whole[-1])


def test_plan_lengths_and_domains_are_those_of_the_rows(rows):
    assert plan_lengths(rows).tolist() == [row["plan_length"] for row in rows]
    assert plan_lengths([*rows, {"prompt": "p"}]) is None
    assert plan_lengths([*rows, {"prompt": "p", "plan_length": None}]) is None
    assert domain_numbers([{"domain": "b"}, {"domain": "a"}, {"domain": "b"}]).tolist() == [1, 0, 1]
    assert domain_numbers([{}, {}]).tolist() == [0, 0]


def test_a_drawn_batch_holds_the_rows_of_its_numbers(rows, tokenizer):
    prompts = PromptData(rows, tokenizer, batch_size=4, seed=0, max_prompt_length=64)
    batch = prompts.batch(2, state_of([0] * 10, [0] * 10, rows=[3, 3, 0, 9]))
    assert batch.columns["id"] == [rows[i]["id"] for i in (3, 3, 0, 9)]
    assert batch.prompt_texts == [rows[i]["prompt"] for i in (3, 3, 0, 9)]
    for ids, mask, encoded in zip(*batch.prompts, batch.columns["prompt_ids"], strict=True):
        assert ids[mask].tolist() == encoded
