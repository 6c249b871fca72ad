"""The sampling and scoring programs, for the rows of one device."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import models
from jaxppo.nn import ModelConfig
from jaxppo.nn.head_logprobs import token_kl, token_logprobs
from jaxppo.parallel import partition, platform
from jaxppo.profiling import memory
from jaxppo.rl import ops, sampling
from jaxppo.rl.sampling import Sampled
from jaxppo.types import Array, Params, PromptBatch, Rollout, Sequences

FEWEST_ROWS = 8
"""Rows below which decoding does not drop those that are done: a step takes as long for fewer, to read the weights."""


class _Rows(NamedTuple):
    """What the rows that are being decoded bring along."""

    uniforms: Array  # [N, C] fp32
    limits: Array  # [N] int32, most tokens
    positions: Array  # [N] int32, of the first token to be sampled
    slots: Array  # [N, P + C] bool: of the cache, those that hold a real token, now or later


class _Written(NamedTuple):
    """What is remembered of the tokens of each row; None where nothing asks for it."""

    seen: Array | None  # [N, V] bool: tokens of prompt and completion, for the repetition penalty
    stop_state: Array | None  # [N] int32: which beginning of a stop string the row ends with


class _Decoding(NamedTuple):
    """Where the decoding loop stands."""

    t: Array  # [] int32, tokens drawn for each row
    left: Array  # [] int32, rows to be continued, of the device that has most of those that decode in step
    rollout: Rollout
    written: _Written
    cache: models.Cache


def generate(
    params: Params,
    prompts: PromptBatch,
    uniforms: Array,
    lengths: Array | None = None,
    *,
    model: ModelConfig,
    stop_ids: tuple[int, ...],
    pad_id: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop_table: np.ndarray | None = None,
    drop_ended: bool | None = None,
    prompts_at_once: int | None = None,
) -> Rollout:
    """Sample B / G completions per prompt with a KV cache, until every row is done.

    Prompts are read once each; their part of the cache is then copied for every completion.

    Args:
        params: language model.
        prompts: G left-padded prompts.
        uniforms: [B, C] fp32 in [0, 1), B a multiple of G; the completions of a prompt are adjacent rows.
        lengths: [B] int32, most tokens of each completion, 1 to C; default: C.
        model: configuration of the model.
        stop_ids: a completion ends with any of these tokens; none: all run to their full length.
        pad_id: fills completion_ids after the end.
        temperature: see `sampling.sample_tokens`.
        top_k: see `sampling.truncate`.
        top_p: see `sampling.truncate`.
        min_p: see `sampling.truncate`.
        repetition_penalty: see `sampling.penalize_repetition`.
        stop_table: [S, V] from `data.stop_table`; a completion also ends with the token that completes a stop string.
        drop_ended: go on with half of the rows as soon as no more of them are to be continued, see `row_counts`; random
            numbers belong to rows, so that this changes nothing but the rounding of products with fewer rows. Default:
            on accelerators, where a step takes the time to read the cache.
        prompts_at_once: read no more than so many prompts at once; default: `memory.prompts_at_once`.
    """
    params = models.for_decoding(model, params)
    copies = uniforms.shape[0] // prompts.prompt_ids.shape[0]
    rows = _rows_of(prompts, uniforms, lengths)
    if prompts_at_once is None:
        prompts_at_once = memory.prompts_at_once(model, params, prompts.prompt_ids.shape, uniforms.shape)
    if drop_ended is None:
        drop_ended = platform.current().name != "cpu"
    can_end = bool(stop_ids) or lengths is not None or stop_table is not None
    # Devices that have but shards of the weights take each step together.
    largest = partition.largest if partition.is_split(params["trunk"], model.hidden_size) else lambda count: count
    draw = partial(sampling.sample_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    def append(rollout: Rollout, written: _Written, logits: Array, t: Array, rows: _Rows) -> tuple[Rollout, _Written]:
        if written.seen is not None:
            logits = sampling.penalize_repetition(logits, written.seen, repetition_penalty)
        drawn = draw(logits, jax.lax.dynamic_slice_in_dim(rows.uniforms, t, 1, axis=1)[:, 0])
        written, stops = _with_token(written, drawn.ids, stop_table)
        for stop_id in stop_ids:
            stops |= drawn.ids == stop_id
        return _append(rollout, drawn, stops, t, rows.limits, pad_id), written

    def left(rollout: Rollout, t: Array, rows: _Rows) -> Array:
        return largest(jnp.sum(_live(rollout, t, rows)))

    def step(state: _Decoding, rows: _Rows) -> _Decoding:
        """Feed the last token drawn, draw the next."""
        last = state.t - 1
        ids = jax.lax.dynamic_slice_in_dim(state.rollout.completion_ids, last, 1, axis=1)
        out = models.apply(
            model,
            params,
            ids,
            positions=(rows.positions + last)[:, None],
            attention_mask=rows.slots,
            cache=state.cache,
            cache_index=prompts.prompt_ids.shape[1] + last,
            logits=False,
        )
        logits = models.lm_logits(model, params, out.hidden[:, 0])
        assert out.cache is not None
        cache = models.densely_laid(out.cache)
        rollout, written = append(state.rollout, state.written, logits, state.t, rows)
        t = state.t + 1
        return _Decoding(t, left(rollout, t, rows), rollout, written, cache)

    logits, cache = _prefill(params, prompts, rows.slots[::copies], copies, model, prompts_at_once)
    nothing = _empty_rollout(uniforms.shape[0], uniforms.shape[1], pad_id)
    unwritten = _Written(
        seen=None if repetition_penalty == 1.0 else jnp.repeat(_seen(prompts, logits.shape[1]), copies, axis=0),
        stop_state=None if stop_table is None else jnp.zeros(uniforms.shape[0], jnp.int32),
    )
    first = append(nothing, unwritten, logits, jnp.int32(0), rows)
    counts = row_counts(uniforms.shape[0]) if drop_ended and can_end else (uniforms.shape[0],)
    t = jnp.int32(1)
    return _decode(step, _Decoding(t, left(first[0], t, rows), *first, cache), rows, counts)


def _seen(prompts: PromptBatch, vocab_size: int) -> Array:
    """Return which tokens each prompt has, [G, V] bool."""
    rows = jnp.arange(len(prompts.prompt_ids))[:, None]
    return jnp.zeros((len(prompts.prompt_ids), vocab_size), bool).at[rows, prompts.prompt_ids].max(prompts.prompt_mask)


def _with_token(written: _Written, ids: Array, stop_table: np.ndarray | None) -> tuple[_Written, Array]:
    """Add a token to each row; returns also which rows have completed a stop string by it, [N] bool."""
    seen, state = written
    if seen is not None:
        seen = seen.at[jnp.arange(len(ids)), ids].set(True)
    if state is None or stop_table is None:
        return _Written(seen, state), jnp.zeros(len(ids), bool)
    state = jnp.asarray(stop_table)[state, ids]
    return _Written(seen, state), state == len(stop_table)


def _rows_of(prompts: PromptBatch, uniforms: Array, lengths: Array | None) -> _Rows:
    num_rows, length = uniforms.shape
    copies = num_rows // prompts.prompt_ids.shape[0]
    # Slots past a query are hidden from it by causality, so one mask serves every step.
    slots = jnp.pad(prompts.prompt_mask, ((0, 0), (0, length)), constant_values=True)
    return _Rows(
        uniforms=uniforms,
        limits=jnp.full((num_rows,), length, jnp.int32) if lengths is None else lengths,
        positions=jnp.repeat(ops.prompt_lengths(prompts.prompt_mask), copies),
        slots=jnp.repeat(slots, copies, axis=0),
    )


def row_counts(num_rows: int) -> tuple[int, ...]:
    """Return how many rows are decoded at a time: all, and then the powers of two below, down to `FEWEST_ROWS`."""
    powers = (2**i for i in reversed(range(num_rows.bit_length())))
    return num_rows, *(count for count in powers if FEWEST_ROWS <= count < num_rows)


def _decode(step: Callable[..., _Decoding], state: _Decoding, rows: _Rows, counts: tuple[int, ...]) -> Rollout:
    """Decode all rows, then as many as `counts` has next as soon as no more are to be continued, and so on.

    Each count is a loop of its own in one program: whether rows are dropped is decided on the device, by each device
    for its own rows (or by those together that decode in step), and nothing waits for the host.
    """
    done, places = state.rollout, jnp.arange(counts[0])
    for now, then in zip(counts, (*counts[1:], 0), strict=True):
        if now < counts[0]:
            # Those to be continued first, in their order; the rest are done, and stay so.
            kept = jnp.argsort(~_live(state.rollout, state.t, rows), stable=True)[:now]
            done, places = _put_back(done, state.rollout, places), places[kept]
            state, rows = _take(state, kept), jax.tree.map(lambda x, kept=kept: x[kept], rows)
        more = lambda state, then=then: state.left > then  # noqa: E731
        state = jax.lax.while_loop(more, lambda state, rows=rows: step(state, rows), state)
    return state.rollout if len(counts) == 1 else _put_back(done, state.rollout, places)


def _live(rollout: Rollout, t: Array, rows: _Rows) -> Array:
    """Return which rows are to be continued, [N] bool."""
    return ~rollout.ended & (t < rows.limits)


def _take(state: _Decoding, kept: Array) -> _Decoding:
    """Keep these rows alone, one array after the other: each makes room for the next before that is copied."""
    leaves, structure = jax.tree.flatten((state.rollout, state.written, state.cache))
    for i, leaf in enumerate(leaves):
        leaves[i], kept = jax.lax.optimization_barrier((leaf[kept], kept))
    return _Decoding(state.t, state.left, *jax.tree.unflatten(structure, leaves))


def _put_back(whole: Rollout, part: Rollout, places: Array) -> Rollout:
    """Write rows back to where they come from."""
    return jax.tree.map(lambda x, rows: x.at[places].set(rows, unique_indices=True), whole, part)


def _prefill(
    params: Params, prompts: PromptBatch, slots: Array, copies: int, model: ModelConfig, at_once: int
) -> tuple[Array, models.Cache]:
    """Compute logits behind each prompt and the cache that holds it, `copies` times each: [B, V] and B rows.

    Parts of the prompts are written to the one cache as they are read, so that only a part's activations are held.
    """
    (count, length), num_slots = prompts.prompt_ids.shape, slots.shape[1]

    def read(ids: Array, mask: Array) -> tuple[Array, models.Cache]:
        cache = models.init_cache(model, *mask.shape)
        last = jnp.full((ids.shape[0], 1), length - 1)
        out = models.apply(model, params, ids, attention_mask=mask, cache=cache, read=last)
        assert out.logits is not None
        assert out.cache is not None
        both = (out.logits[:, 0], out.cache)
        return both if copies == 1 else jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), both)

    if at_once >= count:
        return read(prompts.prompt_ids, slots)

    def read_part(cache: models.Cache, first: Array) -> tuple[models.Cache, Array]:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, at_once), prompts)
        logits, own = read(*part)
        put = lambda x, rows: jax.lax.dynamic_update_slice(x, rows, (first * copies, 0, 0, 0))  # noqa: E731
        return jax.tree.map(put, cache, own), logits

    cache = models.init_cache(model, count * copies, num_slots)
    cache, logits = jax.lax.scan(read_part, cache, jnp.arange(0, count, at_once))
    return logits.reshape(count * copies, -1), cache


def _empty_rollout(num_rows: int, length: int, pad_id: int) -> Rollout:
    return Rollout(
        completion_ids=jnp.full((num_rows, length), pad_id, jnp.int32),
        completion_mask=jnp.zeros((num_rows, length), bool),
        logprobs=jnp.zeros((num_rows, length), jnp.float32),
        ended=jnp.zeros((num_rows,), bool),
    )


def _append(rollout: Rollout, sampled: Sampled, stops: Array, t: Array, limits: Array, pad_id: int) -> Rollout:
    """Write token t of the rows that are not done; some end with it."""
    live = ~rollout.ended & (t < limits)
    ids = jnp.where(live, sampled.ids, pad_id)
    put = lambda buffer, column: jax.lax.dynamic_update_slice(buffer, column[:, None], (0, t))  # noqa: E731
    return Rollout(
        completion_ids=put(rollout.completion_ids, ids),
        completion_mask=put(rollout.completion_mask, live),
        logprobs=put(rollout.logprobs, jnp.where(live, sampled.logprobs, 0.0)),
        ended=rollout.ended | (live & stops),
    )


def to_sequences(prompts: PromptBatch, rollout: Rollout, *, length: int) -> Sequences:
    """Pack prompts and completions into right-padded sequences of `length` tokens; each prompt once per completion."""
    copies = rollout.completion_ids.shape[0] // prompts.prompt_ids.shape[0]
    prompt_ids, prompt_mask = (jnp.repeat(x, copies, axis=0) for x in prompts)
    return Sequences(
        input_ids=ops.pack(prompt_ids, prompt_mask, rollout.completion_ids, length),
        prompt_lengths=ops.prompt_lengths(prompt_mask),
        completion_ids=rollout.completion_ids,
        completion_mask=rollout.completion_mask,
    )


def completion_hidden(params: Params, sequences: Sequences, model: ModelConfig) -> Array:
    """Compute the final hidden states that predict each completion token: [B, C, D]."""
    sizes = (sequences.completion_ids.shape[1], sequences.input_ids.shape[1])
    read = ops.prediction_columns(sequences.prompt_lengths, *sizes)
    return models.apply(model, params, sequences.input_ids, read=read, logits=False).hidden


def completion_logprobs(
    params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """Compute log-probabilities and entropies of completion tokens, both [B, C] fp32 and 0 outside the mask.

    Policy and reference go through this one program, so that equal parameters give equal bits.
    """
    hidden = completion_hidden(params, sequences, model)
    return logprobs_of_hidden(params, hidden, sequences, model=model, temperature=temperature)


def logprobs_of_hidden(
    params: Params, hidden: Array, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """Compute the head's part of `completion_logprobs`, for hidden states already at hand."""
    logprobs, entropy = token_logprobs(
        hidden,
        models.stored_lm_head(model, params),
        sequences.completion_ids,
        temperature=temperature,
        vocab=model.num_logits,
        transposed=model.tie_word_embeddings,
    )
    mask = sequences.completion_mask
    return jnp.where(mask, logprobs, 0.0), jnp.where(mask, entropy, 0.0)


def values_of_hidden(params: Params, hidden: Array) -> Array:
    """Compute the head's part of `completion_values`, for hidden states already at hand."""
    return models.scores(params["value"], hidden)


def completion_values(params: Params, sequences: Sequences, *, model: ModelConfig, value_model: ModelConfig) -> Array:
    """Compute the value of the state before each completion token, and behind the last: [B, C] fp32, not masked.

    `params` is {"policy", "value"}: the value model has a trunk of its own, or only a head for the policy's trunk.
    """
    if "trunk" in params["value"]:
        hidden = completion_hidden(params["value"], sequences, value_model)
    else:
        hidden = completion_hidden(params["policy"], sequences, model)
    return values_of_hidden(params, hidden)


def completion_kl(params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float) -> Array:
    """Compute the exact KL of the policy's next-token distributions to the reference's: [B, C], 0 outside the mask.

    `params` is {"policy", "reference"}.
    """
    of = lambda p: (completion_hidden(p, sequences, model), models.lm_head_kernel(model, p))  # noqa: E731
    kl = token_kl(*of(params["policy"]), *of(params["reference"]), temperature=temperature, vocab=model.num_logits)
    return jnp.where(sequences.completion_mask, kl, 0.0)
