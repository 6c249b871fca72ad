"""Prompts drawn by how often they succeed (`--curriculum success`): a pure function of the seed and of past scores.

All is computed in numpy, on every process alike; the counts are float32, as checkpoints hold them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxppo.config import CurriculumConfig
from jaxppo.data.batches import PromptData
from jaxppo.data.rows import Row
from jaxppo.types import Curriculum

PRIOR = 2.0
"""Tries that every prompt is taken to have had, with as much success as others of its domain and length; these count
as one success and one failure more, so that an untried prompt has 1/2."""
DECAY = 0.8
"""What is left of older counts when a prompt is tried again, and of the recent successes in every update: about the
last five count."""
UNDECIDED = (0.2, 0.8)
"""Estimates of prompts that are neither solved nor hopeless, for a metric."""


def plan_lengths(rows: Sequence[Row]) -> np.ndarray | None:
    """Return the steps of the rows' reference plans, [N] int32, from `plan_length`; None where a row has none."""
    lengths = [row.get("plan_length") for row in rows]
    if not all(isinstance(length, int) for length in lengths):
        return None
    return np.array(lengths, np.int32)


def domain_numbers(rows: Sequence[Row]) -> np.ndarray:
    """Number the rows' domains, [N] int32, from 0 in the order of their names; rows without one are of one domain."""
    names = [str(row.get("domain", "")) for row in rows]
    _, numbers = np.unique(names, return_inverse=True)
    return numbers.astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessCurriculum:
    """Draws the prompts of every update, as many of each domain.

    With s successes in n tries of a prompt, older ones counting less, and S in N of all prompts of its domain whose
    plan is as long (without lengths: of its domain),

        m = (S + 1) / (N + 2)           their success, 1/2 while all are untried
        p = (s + 2 m) / (n + 2)         its estimate
        P(prompt) ~ p (1 - p)           how often it is drawn, among its domain's prompts whose plan is no longer than
                                        the domain's limit

    and after each of its updates s = 0.8 s + successes, n = 0.8 n + tries. The limit of a domain begins with its
    shortest plans, as many as its share of a batch, and takes in the next longer ones, at least as many, whenever
    the domain's share of success over the last updates is at least `threshold`; in it a completion weighs
    1 / (p (1 - p)), for prompts were not drawn alike.

    Attributes:
        lengths: [N] steps of the rows' reference plans; None: they have none, and all rows are drawn.
        domains: [N] number of each row's domain, one of 0 to D - 1.
        batch_size: G, prompts of an update.
        seed: of the draws.
        success: the score from which on a completion is a success.
        threshold: the share of success from which on longer plans are drawn.
        async_rollouts: the prompts of an update are drawn before the scores of the one before it are known.
    """

    lengths: np.ndarray | None
    domains: np.ndarray
    batch_size: int
    seed: int
    success: float
    threshold: float
    async_rollouts: bool = False

    def start(self) -> Curriculum:
        """Return the state before the first update, with its prompts."""
        num_domains = int(self.domains.max()) + 1
        # Below every length, so that the first limits take in the shortest plans.
        no_limits = np.full(num_domains, -1, np.int32)
        zeros = np.zeros(len(self.domains), np.float32)
        state = Curriculum(
            successes=zeros,
            trials=zeros,
            recent=np.zeros((num_domains, 2), np.float32),
            limits=self._next_limits(no_limits),
            rows=np.zeros(0, np.int32),
        )
        return self.draw(state, 0)

    def draw(self, state: Curriculum, step: int) -> Curriculum:
        """Draw the rows of an update: each G times its share, rounded up or down; and so the G / D of each domain.

        All rows that may be drawn lie side by side on a line, those of a domain together. A row's piece of it is as
        long as its share of the domain's weight, so that every domain has a piece of length 1. G points at equal
        distances then pick the rows they fall on. To draw each row by itself has the same mean, and more variance.

        Source: systematic sampling, W. G. Madow 1949, "On the theory of systematic sampling, II": equally spaced points
        with one random start.
        """
        # A function of seed and step alone, so that a resumed run draws the same.
        generator = np.random.default_rng((self.seed, step, len(self.domains)))
        # Which rows are drawn together depends on how they lie,
        # so a domain's rows lie in a new order at every step.
        order = generator.permutation(np.flatnonzero(self.available(state)))
        order = order[np.argsort(self.domains[order], kind="stable")]
        weights = self.weights(state)[order]
        domains = self.domains[order]
        ends = np.cumsum(weights / np.bincount(domains, weights)[domains])
        points = (np.arange(self.batch_size) + generator.random()) / self.batch_size * ends[-1]
        # The last point may be rounded up to the end of the line, where no row is.
        places = np.minimum(np.searchsorted(ends, points, side="right"), len(order) - 1)
        # Shuffled, as the rows of a domain are still side by
        # side, and a micro-batch should have all domains.
        return state._replace(rows=generator.permutation(order[places]).astype(np.int32))

    def update(
        self, state: Curriculum, scores: Sequence[float | None], step: int
    ) -> tuple[Curriculum, dict[str, float]]:
        """Return the state after an update, with the prompts of the next one, and the metrics of the update.

        Args:
            state: before it, with the rows that were drawn for it.
            scores: [B] of its completions, those of a prompt adjacent; None: has none, and is no try.
            step: number of the update, from 0.
        """
        # The metrics are of the rows that could be drawn
        # for this update, before longer plans come in.
        observed = self._with_scores(state, scores)
        next_state = self._with_longer_plans(observed)
        estimates = self.estimates(observed)[self.available(observed)]
        is_undecided = (estimates >= UNDECIDED[0]) & (estimates <= UNDECIDED[1])
        metrics = {
            "curriculum/mean_estimate": float(estimates.mean()),
            "curriculum/between": float(is_undecided.mean()),
            "curriculum/recent_success": float(np.mean(success_shares(observed))),
        }
        if self.lengths is not None:
            metrics["curriculum/plan_length"] = float(np.mean(observed.limits))
        # With `ahead` the next prompts were drawn before these scores came.
        next_draw = self.draw(state if self.async_rollouts else next_state, step + 1)
        return next_state._replace(rows=next_draw.rows), metrics

    def estimates(self, state: Curriculum) -> np.ndarray:
        """Compute p of every row, [N], in (0, 1)."""
        # An untried prompt is like others of its domain and length. While each counted as 1/2, half
        # of the samples were short plans that had long been learned.
        groups = self.domains
        if self.lengths is not None:
            # One number for domain and length
            groups = groups * (self.lengths.max() + 1) + self.lengths
        successes = np.asarray(state.successes, np.float64)
        trials = np.asarray(state.trials, np.float64)
        group_successes = np.bincount(groups, successes) + PRIOR / 2
        group_means = group_successes / (np.bincount(groups, trials) + PRIOR)
        return (successes + PRIOR * group_means[groups]) / (trials + PRIOR)

    def weights(self, state: Curriculum) -> np.ndarray:
        """Compute p (1 - p) of every row, [N], in (0, 1/4]: what its share of the draws is proportional to."""
        p = self.estimates(state)
        return p * (1.0 - p)

    def available(self, state: Curriculum) -> np.ndarray:
        """Return which rows may be drawn, [N] bool."""
        if self.lengths is None:
            return np.ones(len(self.domains), bool)
        return self.lengths <= state.limits[self.domains]

    def _with_scores(self, state: Curriculum, scores: Sequence[float | None]) -> Curriculum:
        """Count the scores of the rows that were drawn."""
        # The completions of a prompt are adjacent.
        rows = np.repeat(state.rows, len(scores) // self.batch_size)
        is_success = [score is not None and score >= self.success for score in scores]
        wins = np.bincount(rows, is_success, len(self.domains))
        tries = np.bincount(rows, [score is not None for score in scores], len(self.domains))
        # A prompt that was not tried keeps its counts: nothing new is known of it.
        decay = np.where(tries > 0, DECAY, 1.0)
        # Prompts with much to learn from are drawn more often;
        # divided by their weight, a domain's prompts count alike.
        weights = self.weights(state)
        domain_wins = np.bincount(self.domains, wins / weights)
        domain_tries = np.bincount(self.domains, tries / weights)
        # -1 tries: longer plans came in after this batch was drawn, see `_with_longer_plans`.
        is_of_shorter_plans = state.recent[:, 1:] < 0
        recent = DECAY * state.recent + np.stack([domain_wins, domain_tries], axis=1)
        return state._replace(
            successes=(decay * state.successes + wins).astype(np.float32),
            trials=(decay * state.trials + tries).astype(np.float32),
            recent=np.where(is_of_shorter_plans, 0.0, recent).astype(np.float32),
        )

    def _with_longer_plans(self, state: Curriculum) -> Curriculum:
        """Take in longer plans where most of a domain's recent completions succeeded, and begin to count them anew.

        With `ahead` the next batch was drawn without them, and is not counted: -1 tries until then.
        """
        limits = np.asarray(state.limits)
        new_limits = np.where(
            success_shares(state) >= self.threshold, self._next_limits(limits), limits
        )
        no_counts = np.array([0, -1 if self.async_rollouts else 0], np.float32)
        recent = np.where((new_limits > limits)[:, None], no_counts, state.recent)
        return state._replace(limits=new_limits, recent=recent)

    def _next_limits(self, limits: np.ndarray) -> np.ndarray:
        """Return limits that take in each domain's next longer plans, at least as many as its share of a batch."""
        if self.lengths is None:
            return limits
        num_wanted = -(-self.batch_size // len(limits))  # rounded up
        next_limits = limits.copy()
        for domain, limit in enumerate(limits):
            # Rows as long as the last one that is wanted come in with it, so there may be more.
            longer = np.sort(self.lengths[(self.domains == domain) & (self.lengths > limit)])
            if len(longer):
                next_limits[domain] = longer[min(num_wanted, len(longer)) - 1]
        return next_limits


class Shuffled:
    """No curriculum: there is no state, and rows come in their shuffled order."""

    def start(self) -> None:
        """See `SuccessCurriculum.start`."""

    def draw(self, state: Curriculum | None, step: int) -> None:
        """See `SuccessCurriculum.draw`."""

    def update(
        self, state: Curriculum | None, scores: Sequence[float | None], step: int
    ) -> tuple[None, dict[str, float]]:
        """See `SuccessCurriculum.after`."""
        return None, {}


def make_curriculum(
    config: CurriculumConfig, prompts: PromptData, async_rollouts: bool
) -> SuccessCurriculum | Shuffled:
    """Make the curriculum of a run.

    Args:
        config: settings.
        prompts: what is drawn from.
        async_rollouts: see `SuccessCurriculum`.
    """
    if config.curriculum == "none":
        return Shuffled()
    return SuccessCurriculum(
        lengths=plan_lengths(prompts.rows),
        domains=domain_numbers(prompts.rows),
        batch_size=prompts.batch_size,
        seed=prompts.seed,
        success=config.curriculum_success,
        threshold=config.curriculum_threshold,
        async_rollouts=async_rollouts,
    )


def success_shares(state: Curriculum) -> np.ndarray:
    """Compute each domain's share of success over the last updates, [D]; 0 where no completion had a score."""
    successes, tries = np.asarray(state.recent, np.float64).T
    # -1 tries: see `_with_longer_plans`.
    return successes / np.where(tries > 0, tries, 1.0)
