"""Decoders that look at the state of the problem while a plan is written; for evaluation alone.

- `applicable`: greedy decoding in which only actions that apply may be written, or the end.
- `reground`: the model writes a plan, its first action is done, and the model is asked again from the state behind it,
  until the goal holds. Each prompt is one more problem of the kind that the model knows: where objects are numbered as
  the prompt mentions them, they get new numbers.

Both know the domain, and `reground` sees that the goal holds: a number that uses them says so. Source: applicability
filtering and regrounding of SymTED, arXiv:2508.07743 (2025).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, models
from jaxppo.data import Row
from jaxppo.errors import DataError
from jaxppo.evaluate.decoding import Decoder
from jaxppo.nn import ModelConfig
from jaxppo.planning import parse_domain, parse_problem, prompts
from jaxppo.planning.datasets.renamed_rows import is_numbered, numbered_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.walk import StateSpace
from jaxppo.planning.transform.renaming import inverse, rename_plan
from jaxppo.planning.transform.restart import from_state
from jaxppo.run import activity, preemption
from jaxppo.types import Array, Params, PromptBatch


class Answer(NamedTuple):
    """A plan, and the tokens that were sampled for it."""

    text: str
    ended: bool
    tokens: int


def decode_grounded(name: str, decoder: Decoder, params: Params, rows: Sequence[Row], most: int | None) -> list[Answer]:
    """Write a plan for each row.

    Args:
        name: `applicable` or `reground`.
        decoder: completes prompts.
        params: of the language model.
        rows: planning problems whose prompts are of a built-in style.
        most: tokens of a prompt; None: any number.

    Raises:
        DataError: a prompt is not what its style makes of the problem.
        SearchLimitError: a problem has too many actions to list.
        UnsupportedPddlError: a problem goes beyond STRIPS.
    """
    return {"applicable": _applicable, "reground": _reground}[name](decoder, params, rows, most)


def _space(row: Row) -> StateSpace:
    return StateSpace(parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"])))


def _write(row: Row, plan: Sequence[Action]) -> str:
    return prompts.render_completion(plan, row["prompt_style"], row["domain_pddl"])


# ------------------------------------------------------------------------------------------------------------- reground


def _reground(decoder: Decoder, params: Params, rows: Sequence[Row], most: int | None) -> list[Answer]:
    spaces = [_space(row) for row in rows]
    states = [space.start for space in spaces]
    plans: list[list[Action]] = [[] for _ in rows]
    tokens = [0] * len(rows)
    waiting = [i for i, space in enumerate(spaces) if not space.is_goal(states[i])]
    for row in rows:
        if row["prompt"] != prompts.render_prompt(row["domain_pddl"], row["problem_pddl"], row["prompt_style"]):
            expected = f"the prompt that style {row['prompt_style']} makes of the problem, to write it for other states"
            raise DataError(f"decoder: expected {expected}, got another one in row {row['id']}")
    numbered = list(map(is_numbered, rows))
    while waiting:
        asked = [_from(rows[i], states[i], len(plans[i]), numbered[i]) for i in waiting]
        encoded = data.encode_prompts(decoder.tokenizer, [one.row for one in asked], most, template=decoder.template)
        decoder.make_room(max(map(len, encoded)))
        greedy = np.zeros((len(encoded), decoder.length), np.float32)
        going = []
        for i, one, completion in zip(waiting, asked, decoder(params, encoded, greedy), strict=True):
            tokens[i] += len(completion.ids)
            written = prompts.parse_completion(completion.text, rows[i]["prompt_style"], rows[i]["domain_pddl"])
            if not written.actions:
                continue
            [action] = rename_plan(written.actions[:1], one.names)
            plans[i].append(action)
            reached = spaces[i].after(states[i], action)
            if reached is None or spaces[i].is_goal(reached):
                continue
            states[i] = reached
            if len(_ids(decoder, rows[i], [plans[i]])[0]) < decoder.length:
                going.append(i)
        waiting = going
    return [Answer(_write(row, plan), True, count) for row, plan, count in zip(rows, plans, tokens, strict=True)]


class _Asked(NamedTuple):
    """What the model is given, and the objects that its names stand for, where these are others."""

    row: Row
    names: Mapping[str, str]


def _from(row: Row, state: frozenset[Any], done: int, numbered: bool) -> _Asked:
    """Return the problem from the state behind some actions."""
    if not done:
        return _Asked(row, {})
    later, names = row | {"problem_pddl": from_state(row["problem_pddl"], state)}, {}
    if numbered:
        problem, numbers = numbered_problem(later, random.Random(f"{row['id']}/{done}"))
        later, names = later | {"problem_pddl": problem}, inverse(numbers)
    prompt = prompts.render_prompt(row["domain_pddl"], later["problem_pddl"], row["prompt_style"])
    return _Asked({name: value for name, value in later.items() if name != "messages"} | {"prompt": prompt}, names)


def _ids(decoder: Decoder, row: Row, plans: Sequence[Sequence[Action]]) -> list[list[int]]:
    """Return the tokens of plans as completions of a row, without the one that ends them."""
    rows = [row | {"completion": _write(row, plan)} for plan in plans]
    return [ids[:-1] for ids in data.encode_completions(decoder.tokenizer, rows, decoder.template)]


# ----------------------------------------------------------------------------------------------------------- applicable


class _Guide:
    """The tokens that may come next in one plan: those of plans whose actions all apply.

    Attributes:
        written: tokens so far.
        ended: whether the last of them ended the plan.
    """

    def __init__(self, space: StateSpace, ids_of: Callable[[Sequence[Sequence[Action]]], list[list[int]]], ends: Any):
        self._space, self._ids_of, self._ends = space, ids_of, ends
        self.written: tuple[int, ...] = ()
        self.ended = False
        self._plans: dict[tuple[int, ...], tuple[Action, ...]] = {(): ()}
        self._open()

    def allowed(self) -> list[int]:
        place = len(self.written)
        return sorted({ids[place] for ids in self._plans} | (set(self._ends) if self._is_plan else set()))

    def take(self, token: int) -> None:
        self.ended = token in self._ends and self._is_plan
        self.written += (token,)
        if not self.ended:
            self._open()

    def _open(self) -> None:
        """Keep the plans that begin with what is written; where it is one, those with one more action join them."""
        place = len(self.written)
        self._plans = {ids: plan for ids, plan in self._plans.items() if ids[:place] == self.written}
        plan = self._plans.pop(self.written, None)
        self._is_plan = plan is not None
        if plan is None:
            return
        longer = [(*plan, action) for action in self._space.applicable(self._space.end_of(plan))]
        found = zip(map(tuple, self._ids_of(longer) if longer else []), longer, strict=True)
        self._plans |= {ids: more for ids, more in found if ids[:place] == self.written and len(ids) > place}


class _Step(NamedTuple):
    """What the model is given to choose the next token of each row."""

    ids: Array  # [B, 1] int32, the last token
    positions: Array  # [B, 1] int32, its position
    slots: Array  # [B, P + C] bool, of the cache, those that hold a real token, now or later


def _begin(
    params: Params, prompt: PromptBatch, slots: Array, allowed: Array, *, model: ModelConfig
) -> tuple[Array, models.Cache]:
    """Read prompts and choose the first token: [B] int32."""
    params = models.for_decoding(model, params)
    rows, length = prompt.prompt_ids.shape
    cache = models.init_cache(model, *slots.shape)
    last = jnp.full((rows, 1), length - 1)
    out = models.apply(model, params, prompt.prompt_ids, attention_mask=slots, cache=cache, read=last)
    assert out.logits is not None
    assert out.cache is not None
    return _best(out.logits[:, 0], allowed), out.cache


def _next(
    params: Params, cache: models.Cache, step: _Step, allowed: Array, index: Array, *, model: ModelConfig
) -> tuple[Array, models.Cache]:
    """Read the last token, at a slot of the cache, and choose the next: [B] int32."""
    out = models.apply(
        model,
        models.for_decoding(model, params),
        step.ids,
        positions=step.positions,
        attention_mask=step.slots,
        cache=cache,
        cache_index=index,
    )
    assert out.logits is not None
    assert out.cache is not None
    return _best(out.logits[:, 0], allowed), out.cache


def _best(logits: Array, allowed: Array) -> Array:
    """Choose the likeliest of the allowed tokens: [B, V] and [B, A] to [B]."""
    chosen = jnp.argmax(jnp.take_along_axis(logits, allowed, axis=1), axis=1)
    return jnp.take_along_axis(allowed, chosen[:, None], axis=1)[:, 0]


def _applicable(decoder: Decoder, params: Params, rows: Sequence[Row], most: int | None) -> list[Answer]:
    encoded = data.encode_prompts(decoder.tokenizer, rows, most, template=decoder.template)
    decoder.make_room(max(map(len, encoded)))
    begin = decoder.parallel.map(partial(_begin, model=decoder.model), (None, 0, 0, 0), 0)
    follow = decoder.parallel.map(partial(_next, model=decoder.model), (None, 0, 0, 0, None), 0, donate=(1,))
    answers: dict[int, Answer] = {}
    size = decoder.rows_for(len(rows))
    with activity.shown("decoding", len(rows)) as progress:
        for chosen in data.chunks(sorted(range(len(rows)), key=lambda i: len(encoded[i])), size):
            preemption.check()
            guides = [_Guide(_space(rows[i]), partial(_ids, decoder, rows[i]), decoder.stop_ids) for i in chosen]
            _guided(decoder, params, begin, follow, *decoder.padded([encoded[i] for i in chosen], size), guides)
            answers |= zip(chosen, _answers(decoder, guides), strict=True)
            progress.done = len(answers)
    return [answers[i] for i in range(len(rows))]


def _guided(
    decoder: Decoder,
    params: Params,
    begin: Callable[..., Any],
    follow: Callable[..., Any],
    prompt: PromptBatch,
    missing: int,
    guides: Sequence[_Guide],
) -> None:
    """Decode a batch token by token: the host says which may come, the model which does.

    The last `missing` rows of the batch fill it up.
    """
    put, length = decoder.parallel.put, prompt.prompt_ids.shape[1]
    slots = np.pad(prompt.prompt_mask, ((0, 0), (0, decoder.length)), constant_values=True)
    first = np.sum(prompt.prompt_mask, axis=1, dtype=np.int32, keepdims=True)
    last = cache = None
    for t in range(decoder.length):
        allowed = _padded([[0] if guide.ended else guide.allowed() for guide in guides], len(guides) + missing)
        if last is None:
            compute = partial(begin, params, *put((prompt, slots, allowed), 0))
        else:
            step = _Step(np.asarray(last)[:, None], first + t - 1, slots)  # type: ignore[arg-type]
            compute = partial(follow, params, cache, *put((step, allowed), 0), jnp.int32(length + t - 1))
        last, cache = activity.attended(lambda compute=compute: jax.block_until_ready(compute()))
        last = decoder.parallel.to_host(last)
        for guide, token in zip(guides, last, strict=False):
            if not guide.ended:
                guide.take(int(token))
        if all(guide.ended for guide in guides):
            break


def _padded(allowed: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """Return token ids as [B, A] int32; rows are filled up with their own first token, missing rows are 0."""
    width = 1 << max(5, (max(map(len, allowed)) - 1).bit_length())
    filled = [[*ids, *[ids[0]] * (width - len(ids))] for ids in allowed]
    return np.array([*filled, *[[0] * width] * (count - len(filled))], np.int32)


def _answers(decoder: Decoder, guides: Sequence[_Guide]) -> list[Answer]:
    ids, lengths = data.right_padded([guide.written for guide in guides], decoder.length)
    mask = np.arange(decoder.length) < lengths[:, None]
    completions = decoder.completions(ids, mask, np.array([guide.ended for guide in guides]))
    return [Answer(one.text, one.ended, len(one.ids)) for one in completions]
