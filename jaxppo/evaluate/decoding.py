"""Complete prompts with a language model, a batch at a time."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import data, models
from jaxppo.config import DataConfig, EvalConfig, SamplingConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import aot, memory
from jaxppo.profiling.halving import Halving
from jaxppo.rl import rollout
from jaxppo.run import activity, preemption
from jaxppo.types import Params, PromptBatch


class Completion(NamedTuple):
    """One decoded completion."""

    text: str
    ended: bool
    ids: list[int]


class Decoder:
    """Completes prompts; call it with the parameters of a language model.

    Args:
        model: configuration of the model.
        tokenizer: its tokenizer.
        parallel: devices.
        data_config: whether and how the chat template is used.
        evaluation: batch size and temperature.
        sampling: where a completion ends, its most tokens and the repetition penalty; the rest comes from `evaluation`.

    Attributes:
        model, tokenizer, parallel: as given.
        batch_size: most prompts completed at once, as configured and as memory allows; see `make_room`.
        prompt_length: most tokens of a prompt; see `make_room`.
        template: how the model gets the texts of a row.
        length: most tokens of a completion.
        end_ids: tokens behind which a completion has ended, of which its text has none.
        stop_ids: tokens that end a completion.
    """

    def __init__(
        self,
        model: ModelConfig,
        tokenizer: Any,
        parallel: DataParallel,
        data_config: DataConfig,
        evaluation: EvalConfig,
        sampling: SamplingConfig,
    ):
        self.model, self.tokenizer, self.parallel = model, tokenizer, parallel
        self._settings = (data_config, evaluation, sampling)
        self.template, self.length = data.make_chat_template(tokenizer, data_config), sampling.response_length
        self.end_ids = model.ends_beside(self.template.end_id)
        self.stop_ids = sampling.stop_ids(self.end_ids) or self.end_ids  # a plan ends, however training samples
        self.batch_size = data.bucket(evaluation.eval_batch_size, parallel.row_shards)
        self.prompt_length = 0
        self._halving = Halving("evaluation")
        program = partial(
            rollout.generate,
            model=model,
            stop_ids=self.stop_ids,
            pad_id=tokenizer.pad_token_id,
            temperature=evaluation.eval_temperature,
            top_k=evaluation.eval_top_k,
            top_p=evaluation.eval_top_p,
            repetition_penalty=sampling.repetition_penalty,
            stop_table=data.stop_table(tokenizer, sampling.stop_strings, model.num_logits),
        )
        self._generate = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)

    def at(self, temperature: float) -> "Decoder":
        """Return a decoder that differs in the temperature alone."""
        data_config, evaluation, sampling = self._settings
        if temperature == evaluation.eval_temperature:
            return self
        other = replace(evaluation, eval_temperature=temperature)
        return Decoder(self.model, self.tokenizer, self.parallel, data_config, other, sampling)

    def make_room(self, longest: int) -> None:
        """Take prompts of up to so many tokens, and as many of them at once as there is memory for.

        Where they get longer, the program is compiled again.

        Raises:
            ModelError: the model does not know so many positions.
        """
        what, limit = "longest prompt of eval_splits and response_length", self.tokenizer.model_max_length
        models.check_length(self.model, longest + self.length, what, limit)
        self.prompt_length = max(self.prompt_length, data.bucket(longest))
        fitting = memory.decoded_rows(self.model, self.prompt_length, self.length)
        if fitting is not None:
            shards = self.parallel.row_shards
            self.batch_size = min(self.batch_size, shards * fitting)

    def __call__(self, params: Params, encoded: Sequence[list[int]], uniforms: np.ndarray) -> list[Completion]:
        """Complete prompts; similar lengths share a batch.

        Args:
            params: of the language model.
            encoded: token ids of each prompt.
            uniforms: [N, C] fp32 in [0, 1) for each of them: what is sampled does not depend on the rows beside it.
        """
        completions: dict[int, Completion] = {}
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        shards = self.parallel.row_shards

        def decode_next() -> dict[int, Completion]:
            size = self.rows_for(len(encoded))
            rows = order[len(completions) : len(completions) + size]
            batch = [encoded[i] for i in rows]
            decoded = activity.attended(lambda: self._batch(params, batch, uniforms[rows], size))
            return dict(zip(rows, decoded, strict=True))

        with activity.shown("decoding", len(encoded)) as progress:
            while len(completions) < len(encoded):
                preemption.check()
                completions |= self._halving.repeated(decode_next, lambda: self.rows_for(len(encoded)) // shards)
                progress.done = len(completions)
        return [completions[i] for i in range(len(encoded))]

    def rows_for(self, count: int) -> int:
        """Return how many rows the batches have in which so many prompts are completed: few sizes to compile for."""
        shards = self.parallel.row_shards
        # A few rows of a large model take less than many, so they are padded to a power of two.
        few = 1 << max(0, count - 1).bit_length()
        planned = min(self.batch_size, data.bucket(min(few, data.padded_size(count)), shards))
        return shards * self._halving.rows(planned // shards)

    def _batch(self, params: Params, encoded: Sequence[list[int]], uniforms: np.ndarray, size: int) -> list[Completion]:
        prompts, missing = self.padded(encoded, size)
        draws = np.concatenate([uniforms, np.repeat(uniforms[:1], missing, axis=0)])
        done = self.parallel.to_host(self._generate(params, *self.parallel.put((prompts, draws), 0)))
        return self.completions(done.completion_ids, done.completion_mask, done.ended)[: len(encoded)]

    def padded(self, encoded: Sequence[list[int]], size: int) -> tuple[PromptBatch, int]:
        """Return a batch of `size` prompts, filled up with copies of the first, and how many copies there are."""
        missing = size - len(encoded)
        filled = [*encoded, *[encoded[0]] * missing]
        return data.pad_left(filled, self.prompt_length, self.tokenizer.pad_token_id), missing

    def completions(self, ids: np.ndarray, mask: np.ndarray, ended: np.ndarray) -> list[Completion]:
        """Return the texts of completions: ids and mask [N, C], ended [N]."""
        texts = data.decode(self.tokenizer, ids, mask, self.end_ids)
        rows = zip(texts, ended, ids, mask, strict=True)
        return [Completion(text, bool(end), row[real].tolist()) for text, end, row, real in rows]

    def plan(self, params: Params) -> aot.Plan:
        """Plan the program, for devices that are not there.

        Args:
            params: shapes of a language model.
        """
        place = partial(aot.placed, self.parallel)
        shape = (self.batch_size, self.prompt_length)
        prompts = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (np.int32, np.bool_)]
        draws = jax.ShapeDtypeStruct((self.batch_size, self.length), np.float32)
        held = place(params)
        drawn = place((PromptBatch(*prompts), draws), 0)  # type: ignore[arg-type]
        stages = {"generate": [aot.Program(self._generate, (held,), drawn)]}
        return aot.Plan(self.parallel, stages, aot.shard_bytes(held), trips=self.length - 1)
