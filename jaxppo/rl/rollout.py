"""The sampling and scoring programs, for the rows of one device."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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

MIN_DECODED_ROWS = 8
"""Rows below which decoding does not drop those that are done: a step takes as long for fewer, to read the weights."""


class _RowInputs(NamedTuple):
    """What stays the same of each row while it is decoded."""

    uniforms: Array  # [N, C] fp32
    max_tokens: Array  # [N] int32
    first_positions: Array  # [N] int32, of the first sampled token
    slot_mask: Array  # [N, P + C] bool: slots of the cache that hold a real token, now or later


class _TokenHistory(NamedTuple):
    """What is remembered of the tokens of each row; None where no setting needs it."""

    # [N, V] bool: tokens of prompt and completion, for the repetition penalty
    seen_tokens: Array | None
    stop_state: Array | None  # [N] int32: which beginning of a stop string the row ends with


class _DecodingState(NamedTuple):
    """What changes with every sampled token."""

    t: Array  # [] int32, tokens sampled for each row
    # [] int32, rows to be continued; the largest number
    # of any device that decodes in step with others
    num_live: Array
    rollout: Rollout
    history: _TokenHistory
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
        stop_ids: a completion ends with any of these tokens; none: all have their full length.
        pad_id: fills completion_ids after the end.
        temperature: see `sampling.sample_tokens`.
        top_k: see `sampling.truncate`.
        top_p: see `sampling.truncate`.
        min_p: see `sampling.truncate`.
        repetition_penalty: see `sampling.penalize_repetition`.
        stop_table: [S, V] from `data.stop_table`; a completion also ends with the token that completes a stop string.
        drop_ended: decode only the unfinished rows once they fit into the next smaller power of two, see `_decode`.
            Random numbers belong to rows, so this changes nothing but the rounding of products with fewer rows.
            Default: on accelerators, where a step takes the time to read the cache.
        prompts_at_once: read at most so many prompts at once; default: `memory.prompts_at_once`.
    """
    # Once for all tokens: casts and gathers within the loop would be done for every token.
    params = models.for_decoding(model, params)
    num_rows, response_length = uniforms.shape
    num_prompts, prompt_length = prompts.prompt_ids.shape
    copies = num_rows // num_prompts
    rows = _row_inputs(prompts, uniforms, lengths)
    if prompts_at_once is None:
        prompts_at_once = memory.prompts_at_once(
            model, params, prompts.prompt_ids.shape, uniforms.shape
        )
    if drop_ended is None:
        drop_ended = platform.current().name != "cpu"
    can_end = bool(stop_ids) or lengths is not None or stop_table is not None
    # Devices that hold shards of the weights need each other
    # in every step: none may end its loop before the others.
    decodes_in_step = partition.is_split(params["trunk"], model.hidden_size)
    draw = partial(
        sampling.sample_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )

    def sample_token(
        rollout: Rollout, history: _TokenHistory, logits: Array, t: Array, rows: _RowInputs
    ) -> tuple[Rollout, _TokenHistory]:
        if history.seen_tokens is not None:
            logits = sampling.penalize_repetition(logits, history.seen_tokens, repetition_penalty)
        # Drawn before the loop for each row and token: what a row
        # becomes does not depend on the rows decoded with it.
        uniforms = jax.lax.dynamic_slice_in_dim(rows.uniforms, t, 1, axis=1)
        tokens = draw(logits, uniforms[:, 0])
        history, stops = _with_token(history, tokens.ids, stop_table)
        for stop_id in stop_ids:
            stops |= tokens.ids == stop_id
        return _append(rollout, tokens, stops, t, rows, pad_id), history

    def num_live(rollout: Rollout, t: Array, rows: _RowInputs) -> Array:
        count = jnp.sum(_is_live(rollout, t, rows))
        return partition.largest(count) if decodes_in_step else count

    def step(state: _DecodingState, rows: _RowInputs) -> _DecodingState:
        """Feed the last sampled token, sample the next."""
        # Token t - 1 has no keys and values in the cache yet: they are written in this step.
        last = state.t - 1
        ids = jax.lax.dynamic_slice_in_dim(state.rollout.completion_ids, last, 1, axis=1)
        out = models.apply(
            model,
            params,
            ids,
            positions=(rows.first_positions + last)[:, None],
            attention_mask=rows.slot_mask,
            cache=state.cache,
            cache_index=prompt_length + last,
            logits=False,
        )
        logits = models.lm_logits(model, params, out.hidden[:, 0])
        assert out.cache is not None
        cache = models.dense_layout(out.cache)
        rollout, history = sample_token(state.rollout, state.history, logits, state.t, rows)
        t = state.t + 1
        return _DecodingState(t, num_live(rollout, t, rows), rollout, history, cache)

    logits, cache = _prefill(
        params, prompts, rows.slot_mask[::copies], copies, model, prompts_at_once
    )
    seen_tokens = None
    if repetition_penalty != 1.0:
        seen_tokens = jnp.repeat(_seen_tokens(prompts, logits.shape[1]), copies, axis=0)
    stop_state = None if stop_table is None else jnp.zeros(num_rows, jnp.int32)
    history = _TokenHistory(seen_tokens, stop_state)
    # The logits of the prompts give the first token, so the loop begins with the second.
    empty = _empty_rollout(num_rows, response_length, pad_id)
    rollout, history = sample_token(empty, history, logits, jnp.int32(0), rows)
    counts = row_counts(num_rows) if drop_ended and can_end else (num_rows,)
    t = jnp.int32(1)
    state = _DecodingState(t, num_live(rollout, t, rows), rollout, history, cache)
    return _decode(step, state, rows, counts)


def _seen_tokens(prompts: PromptBatch, vocab_size: int) -> Array:
    """Return which tokens each prompt has, [G, V] bool."""
    num_prompts = len(prompts.prompt_ids)
    rows = jnp.arange(num_prompts)[:, None]
    seen_tokens = jnp.zeros((num_prompts, vocab_size), bool)
    # The largest and not the last: padding may hold the id of a token that the prompt has, too.
    return seen_tokens.at[rows, prompts.prompt_ids].max(prompts.prompt_mask)


def _with_token(
    history: _TokenHistory, ids: Array, stop_table: np.ndarray | None
) -> tuple[_TokenHistory, Array]:
    """Add a token to each row; returns also which rows have completed a stop string by it, [N] bool."""
    seen_tokens = history.seen_tokens
    if seen_tokens is not None:
        rows = jnp.arange(len(ids))
        seen_tokens = seen_tokens.at[rows, ids].set(True)
    if history.stop_state is None or stop_table is None:
        return _TokenHistory(seen_tokens, history.stop_state), jnp.zeros(len(ids), bool)
    stop_state = jnp.asarray(stop_table)[history.stop_state, ids]
    return _TokenHistory(seen_tokens, stop_state), stop_state == len(stop_table)


def _row_inputs(prompts: PromptBatch, uniforms: Array, lengths: Array | None) -> _RowInputs:
    num_rows, length = uniforms.shape
    copies = num_rows // prompts.prompt_ids.shape[0]
    # Slots past a query are hidden from it by causality, so one mask serves every step.
    slot_mask = jnp.pad(prompts.prompt_mask, ((0, 0), (0, length)), constant_values=True)
    return _RowInputs(
        uniforms=uniforms,
        max_tokens=jnp.full((num_rows,), length, jnp.int32) if lengths is None else lengths,
        first_positions=jnp.repeat(ops.prompt_lengths(prompts.prompt_mask), copies),
        slot_mask=jnp.repeat(slot_mask, copies, axis=0),
    )


def row_counts(num_rows: int) -> tuple[int, ...]:
    """Return how many rows are decoded at a time: all, then the powers of two below, down to `MIN_DECODED_ROWS`."""
    counts = [num_rows]
    power = 1 << (num_rows.bit_length() - 1)
    while power >= MIN_DECODED_ROWS:
        if power < num_rows:
            counts.append(power)
        power //= 2
    return tuple(counts)


def _decode(
    step: Callable[..., _DecodingState],
    state: _DecodingState,
    rows: _RowInputs,
    counts: tuple[int, ...],
) -> Rollout:
    """Decode all rows; once no more than `counts[1]` of them are to be continued, these alone; and so on.

    Most completions of a batch end early, and a few are long. A step reads weights and cache: with half of the rows it
    reads half of the cache. But a compiled program has one shape, so each count is a loop of its own in one program.
    Whether rows are dropped is decided on the device, by each device for its own rows (or by those together that decode
    in step), and nothing waits for the host. Rows that are dropped are written back to the rollout of all rows, at the
    places that they come from.
    """
    num_rows = counts[0]
    all_rows = state.rollout
    places = jnp.arange(num_rows)
    # Each loop ends with as many rows as the next one takes, and the last with none.
    next_counts = (*counts[1:], 0)
    for count, next_count in zip(counts, next_counts, strict=True):
        if count < num_rows:
            # Those to be continued first, in their order; the others have ended, and stay so.
            is_live = _is_live(state.rollout, state.t, rows)
            selected = jnp.argsort(~is_live, stable=True)[:count]
            all_rows = _put_back(all_rows, state.rollout, places)
            places = places[selected]
            state = _select_rows(state, selected)
            rows = jax.tree.map(lambda x, selected=selected: x[selected], rows)
        state = jax.lax.while_loop(
            lambda state, next_count=next_count: state.num_live > next_count,
            lambda state, rows=rows: step(state, rows),
            state,
        )
    if len(counts) == 1:
        return state.rollout
    return _put_back(all_rows, state.rollout, places)


def _is_live(rollout: Rollout, t: Array, rows: _RowInputs) -> Array:
    """Return which rows are to be continued, [N] bool."""
    return ~rollout.ended & (t < rows.max_tokens)


def _select_rows(state: _DecodingState, selected: Array) -> _DecodingState:
    """Keep these rows alone, one array after the other: each makes room for the next before that is copied."""
    leaves, structure = jax.tree.flatten((state.rollout, state.history, state.cache))
    for i, leaf in enumerate(leaves):
        # The next leaf needs the `selected` that comes out of
        # the barrier, so it is not copied before this one is.
        leaves[i], selected = jax.lax.optimization_barrier((leaf[selected], selected))
    rollout, history, cache = jax.tree.unflatten(structure, leaves)
    return _DecodingState(state.t, state.num_live, rollout, history, cache)


def _put_back(all_rows: Rollout, selected: Rollout, places: Array) -> Rollout:
    """Write rows back to the places that they come from."""

    def put(x: Array, rows: Array) -> Array:
        return x.at[places].set(rows, unique_indices=True)

    return jax.tree.map(put, all_rows, selected)


def _prefill(
    params: Params,
    prompts: PromptBatch,
    slot_mask: Array,
    copies: int,
    model: ModelConfig,
    at_once: int,
) -> tuple[Array, models.Cache]:
    """Compute the logits after each prompt and the cache that holds it, `copies` times each: [B, V] and B rows.

    Parts of the prompts are written to the one cache as they are read, so that only a part's activations are held.
    """
    # The cache has the slots of the completions from
    # the beginning, so that it never grows or moves.
    count, length = prompts.prompt_ids.shape

    def read(ids: Array, mask: Array) -> tuple[Array, models.Cache]:
        cache = models.init_cache(model, *mask.shape)
        # Left padding: the last token of every prompt is in
        # the last column, and only its logits are needed.
        last = jnp.full((ids.shape[0], 1), length - 1)
        out = models.apply(model, params, ids, attention_mask=mask, cache=cache, read=last)
        assert out.logits is not None
        assert out.cache is not None
        result = (out.logits[:, 0], out.cache)
        if copies == 1:
            return result
        return jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), result)

    if at_once >= count:
        return read(prompts.prompt_ids, slot_mask)

    def read_part(cache: models.Cache, first: Array) -> tuple[models.Cache, Array]:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, at_once), prompts)
        logits, part_cache = read(*part)
        place = (first * copies, 0, 0, 0)

        def put(x: Array, rows: Array) -> Array:
            return jax.lax.dynamic_update_slice(x, rows, place)

        return jax.tree.map(put, cache, part_cache), logits

    cache = models.init_cache(model, count * copies, slot_mask.shape[1])
    firsts = jnp.arange(0, count, at_once)
    cache, logits = jax.lax.scan(read_part, cache, firsts)
    return logits.reshape(count * copies, -1), cache


def _empty_rollout(num_rows: int, length: int, pad_id: int) -> Rollout:
    return Rollout(
        completion_ids=jnp.full((num_rows, length), pad_id, jnp.int32),
        completion_mask=jnp.zeros((num_rows, length), bool),
        logprobs=jnp.zeros((num_rows, length), jnp.float32),
        ended=jnp.zeros((num_rows,), bool),
    )


def _append(
    rollout: Rollout, tokens: Sampled, stops: Array, t: Array, rows: _RowInputs, pad_id: int
) -> Rollout:
    """Write token t of the rows that are to be continued; some end with it."""
    # A row that has ended is still computed, as all rows are
    # one product; what it would say is thrown away here.
    is_live = _is_live(rollout, t, rows)

    def put(buffer: Any, column: Array) -> Array:
        return jax.lax.dynamic_update_slice(buffer, column[:, None], (0, t))

    ids = jnp.where(is_live, tokens.ids, pad_id)
    logprobs = jnp.where(is_live, tokens.logprobs, 0.0)
    return Rollout(
        completion_ids=put(rollout.completion_ids, ids),
        completion_mask=put(rollout.completion_mask, is_live),
        logprobs=put(rollout.logprobs, logprobs),
        ended=rollout.ended | (is_live & stops),
    )


def to_sequences(prompts: PromptBatch, rollout: Rollout, *, length: int) -> Sequences:
    """Pack prompts and completions into right-padded sequences of `length` tokens; each prompt once per completion."""
    copies = rollout.completion_ids.shape[0] // prompts.prompt_ids.shape[0]
    prompt_ids = jnp.repeat(prompts.prompt_ids, copies, axis=0)
    prompt_mask = jnp.repeat(prompts.prompt_mask, copies, axis=0)
    return Sequences(
        input_ids=ops.pack(prompt_ids, prompt_mask, rollout.completion_ids, length),
        prompt_lengths=ops.prompt_lengths(prompt_mask),
        completion_ids=rollout.completion_ids,
        completion_mask=rollout.completion_mask,
    )


def completion_hidden(params: Params, sequences: Sequences, model: ModelConfig) -> Array:
    """Compute the final hidden states that predict each completion token: [B, C, D]."""
    completion_length = sequences.completion_ids.shape[1]
    length = sequences.input_ids.shape[1]
    columns = ops.prediction_columns(sequences.prompt_lengths, completion_length, length)
    return models.apply(model, params, sequences.input_ids, read=columns, logits=False).hidden


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
    logprobs = jnp.where(mask, logprobs, 0.0)
    entropy = jnp.where(mask, entropy, 0.0)
    return logprobs, entropy


def completion_values(
    params: Params,
    sequences: Sequences,
    *,
    model: ModelConfig,
    value_model: ModelConfig,
    policy_hidden: Array | None = None,
) -> Array:
    """Compute the value of the state before each completion token, and after the last: [B, C] fp32, not masked.

    `params` is {"policy", "value"}: the value model has a trunk of its own, or only a head for the policy's trunk.
    Hidden states of the latter may be at hand already.
    """
    hidden = policy_hidden
    if "trunk" in params["value"]:
        hidden = completion_hidden(params["value"], sequences, value_model)
    elif hidden is None:
        hidden = completion_hidden(params["policy"], sequences, model)
    return models.scores(params["value"], hidden)


def completion_kl(
    params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> Array:
    """Compute the exact KL of the policy's next-token distributions to the reference's: [B, C], 0 outside the mask.

    `params` is {"policy", "reference"}.
    """
    policy = params["policy"]
    reference = params["reference"]
    kl = token_kl(
        completion_hidden(policy, sequences, model),
        models.lm_head_kernel(model, policy),
        completion_hidden(reference, sequences, model),
        models.lm_head_kernel(model, reference),
        temperature=temperature,
        vocab=model.num_logits,
    )
    return jnp.where(sequences.completion_mask, kl, 0.0)
