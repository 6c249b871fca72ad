"""Prompts drawn by how often they succeed (`--curriculum success`): a pure function of the seed and of past scores.

All is computed in numpy, on every process alike; what is known so far is kept in float32, as checkpoints hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxppo.config import CurriculumConfig
from jaxppo.data.batches import PromptData
from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.rows import Row, require_problem
from jaxppo.data.step_rows import StreamedPrompts
from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.begun_rows import begun_rows
from jaxppo.types import Curriculum

PRIOR = 2.0
"""Tries that every prompt is taken to have had, with as much success as others of its domain and length; these count
as one success and one failure more, so that what is unknown is 1/2."""
KEPT = 0.8
"""What is left of older counts when a prompt is tried again, and of the recent successes in every update: about the
last five count."""
BETWEEN = (0.2, 0.8)
"""Estimates of prompts that are neither solved nor hopeless, for a metric."""


def plan_lengths(rows: Sequence[Row]) -> np.ndarray | None:
    """Return the steps of the rows' reference plans, [N] int32, from `plan_length`; None where a row has none."""
    lengths = [row.get("plan_length") for row in rows]
    return np.array(lengths, np.int32) if all(isinstance(length, int) for length in lengths) else None


def domain_numbers(rows: Sequence[Row]) -> np.ndarray:
    """Number the rows' domains, [N] int32, from 0 in the order of their names; rows without one are of one domain."""
    names = [str(row.get("domain", "")) for row in rows]
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


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
        ahead: the prompts of an update are drawn before the scores of the one before it are there (`async_rollouts`).
    """

    lengths: np.ndarray | None
    domains: np.ndarray
    batch_size: int
    seed: int
    success: float
    threshold: float
    ahead: bool = False

    def start(self) -> Curriculum:
        """Return what is known before the first update, with its prompts."""
        none, num_domains = np.zeros(len(self.domains), np.float32), int(self.domains.max()) + 1
        limits = self._longer(np.full(num_domains, -1, np.int32))
        known = Curriculum(none, none, np.zeros((num_domains, 2), np.float32), limits, np.zeros(0, np.int32))
        return self.drawn(known, 0)

    def drawn(self, known: Curriculum, step: int) -> Curriculum:
        """Draw the rows of an update: each G times its share, rounded up or down; and so the G / D of each domain.

        Source: systematic sampling, W. G. Madow 1949, "On the theory of systematic sampling, II": equally spaced points
        with one random start, on a line on which each row has a piece as long as its weight.
        """
        generator = np.random.default_rng((self.seed, step, len(self.domains)))
        order = generator.permutation(np.flatnonzero(self.available(known)))
        order = order[np.argsort(self.domains[order], kind="stable")]
        weight, domains = self.weights(known)[order], self.domains[order]
        edges = np.cumsum(weight / np.bincount(domains, weight)[domains])
        points = (np.arange(self.batch_size) + generator.random()) / self.batch_size * edges[-1]
        places = np.minimum(np.searchsorted(edges, points, side="right"), len(order) - 1)  # the last could round up
        return known._replace(rows=generator.permutation(order[places]).astype(np.int32))

    def after(
        self, known: Curriculum, scores: Sequence[float | None], step: int
    ) -> tuple[Curriculum, dict[str, float]]:
        """Return what is known after an update, with the prompts of the next one, and the metrics of the update.

        Args:
            known: before it, with the rows that were drawn for it.
            scores: [B] of its completions, those of a prompt adjacent; None: has none, and is no try.
            step: number of the update, from 0.
        """
        observed = self._observed(known, scores)
        after = self._lengthened(observed)
        estimate = self.estimates(observed)[self.available(observed)]
        metrics = {
            "curriculum/mean_estimate": float(estimate.mean()),
            "curriculum/between": float(((estimate >= BETWEEN[0]) & (estimate <= BETWEEN[1])).mean()),
            "curriculum/recent_success": float(np.mean(shares(observed))),
        }
        if self.lengths is not None:
            metrics["curriculum/plan_length"] = float(np.mean(observed.limits))
        return after._replace(rows=self.drawn(known if self.ahead else after, step + 1).rows), metrics

    def estimates(self, known: Curriculum) -> np.ndarray:
        """Compute p of every row, [N], in (0, 1)."""
        kinds = self.domains  # numbers of domain and length
        if self.lengths is not None:
            kinds = kinds * (self.lengths.max() + 1) + self.lengths
        successes, trials = (np.asarray(counts, np.float64) for counts in (known.successes, known.trials))
        of_kinds = (np.bincount(kinds, successes) + PRIOR / 2) / (np.bincount(kinds, trials) + PRIOR)
        return (successes + PRIOR * of_kinds[kinds]) / (trials + PRIOR)

    def weights(self, known: Curriculum) -> np.ndarray:
        """Compute p (1 - p) of every row, [N], in (0, 1/4]: what its share of the draws is proportional to."""
        p = self.estimates(known)
        return p * (1.0 - p)

    def available(self, known: Curriculum) -> np.ndarray:
        """Return which rows may be drawn, [N] bool."""
        return np.ones(len(self.domains), bool) if self.lengths is None else self.lengths <= known.limits[self.domains]

    def _observed(self, known: Curriculum, scores: Sequence[float | None]) -> Curriculum:
        """Count the scores of the rows that were drawn."""
        rows = np.repeat(known.rows, len(scores) // self.batch_size)
        won = [score is not None and score >= self.success for score in scores]
        wins = np.bincount(rows, won, len(self.domains))
        tries = np.bincount(rows, [score is not None for score in scores], len(self.domains))
        kept, weight = np.where(tries > 0, KEPT, 1.0), self.weights(known)
        of_update = [np.bincount(self.domains, counts / weight) for counts in (wins, tries)]
        drawn_before = known.recent[:, 1:] < 0  # longer plans came in
        recent = np.where(drawn_before, 0.0, KEPT * known.recent + np.stack(of_update, axis=1))
        return known._replace(
            successes=(kept * known.successes + wins).astype(np.float32),
            trials=(kept * known.trials + tries).astype(np.float32),
            recent=recent.astype(np.float32),
        )

    def _lengthened(self, known: Curriculum) -> Curriculum:
        """Take in longer plans where most of a domain's recent completions succeeded, and begin to count them anew.

        With `ahead` the next batch was drawn without them, and is not counted: -1 tries until then.
        """
        limits = np.asarray(known.limits)
        longer = np.where(shares(known) >= self.threshold, self._longer(limits), limits)
        anew = np.array([0, -1 if self.ahead else 0], np.float32)
        recent = np.where((longer > limits)[:, None], anew, known.recent)
        return known._replace(limits=longer, recent=recent)

    def _longer(self, limits: np.ndarray) -> np.ndarray:
        """Return limits that take in each domain's next longer plans, at least as many as its share of a batch."""
        if self.lengths is None:
            return limits
        share, found = -(-self.batch_size // len(limits)), []
        for domain, limit in enumerate(limits):
            longer = np.sort(self.lengths[(self.domains == domain) & (self.lengths > limit)])
            found.append(longer[min(share, len(longer)) - 1] if len(longer) else limit)
        return np.array(found, np.int32)


class Shuffled:
    """No curriculum: nothing is known, and rows come in their shuffled order."""

    def start(self) -> None:
        """See `SuccessCurriculum.start`."""

    def drawn(self, known: None, step: int) -> None:
        """See `SuccessCurriculum.drawn`."""

    def after(self, known: None, scores: Sequence[float | None], step: int) -> tuple[None, dict[str, float]]:
        """See `SuccessCurriculum.after`."""
        return None, {}


def with_begun_plans(rows: list[Row], config: CurriculumConfig, seed: int, template: ChatTemplate) -> list[Row]:
    """Return the rows, each followed by its `reference_prefixes` begun ones (see `begun_row`), or all as they are.

    Source: training from states near the end of a demonstration, C. Florensa et al. 2017, "Reverse curriculum
    generation for reinforcement learning"; for language models Z. Xi et al. 2024, "Training large language models for
    reasoning through reverse curriculum reinforcement learning". With `--curriculum success` the shortest rests of
    plans come first; without it, all are mixed.

    Raises:
        ConfigError: the model has a chat template, by which a plan would begin in the user's turn.
        DataError: rows that are not planning problems, or as for `begun_row`.
    """
    if config.reference_prefixes == 0:
        return rows
    if template.templated:
        expected = "0 for a model with a chat template, or use_chat_template False"
        raise ConfigError(f"reference_prefixes: expected {expected}, got {config.reference_prefixes}")
    for row in rows:
        require_problem(row, "reference_prefixes")
    return [one for row in rows for one in (row, *begun_rows(row, config.reference_prefixes, seed))]


def make_curriculum(
    config: CurriculumConfig, prompts: PromptData | StreamedPrompts, ahead: bool
) -> SuccessCurriculum | Shuffled:
    """Make the curriculum of a run.

    Args:
        config: settings.
        prompts: what is drawn from.
        ahead: see `SuccessCurriculum`.
    """
    if config.curriculum == "none" or isinstance(prompts, StreamedPrompts):
        return Shuffled()
    return SuccessCurriculum(
        lengths=plan_lengths(prompts.rows),
        domains=domain_numbers(prompts.rows),
        batch_size=prompts.batch_size,
        seed=prompts.seed,
        success=config.curriculum_success,
        threshold=config.curriculum_threshold,
        ahead=ahead,
    )


def shares(known: Curriculum) -> np.ndarray:
    """Compute each domain's share of success over the last updates, [D]; 0 where no completion had a score."""
    successes, tries = np.asarray(known.recent, np.float64).T  # -1 tries: see `_lengthened`
    return successes / np.where(tries > 0, tries, 1.0)
