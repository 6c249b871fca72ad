"""Complete prompts with a language model, a batch at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxppo import data, models
from jaxppo.config import DataConfig, EvalConfig, SamplingConfig
from jaxppo.evaluate.predictions import Prediction
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.profiling.halving import Halving
from jaxppo.rl import rollout
from jaxppo.run import activity, preemption
from jaxppo.types import Params


class Completion(NamedTuple):
    """One decoded completion."""

    text: str
    ended: bool
    ids: list[int]

    def as_prediction(self, seed: int = 0) -> Prediction:
        """Return it as a plan to be judged; `seed` is the number of the model."""
        return Prediction(self.text, self.ended, seed, tokens=len(self.ids))


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
        batch_size: most prompts completed at once, as configured and as memory allows; see `fit_prompts`.
        prompt_length: most tokens of a prompt; see `fit_prompts`.
        template: how the model gets the texts of a row.
        length: most tokens of a completion.
        end_ids: tokens after which a completion has ended, of which its text has none.
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
        self.model = model
        self.tokenizer = tokenizer
        self.parallel = parallel
        self.template = data.make_chat_template(tokenizer, data_config)
        self.length = sampling.response_length
        self.end_ids = model.source.eos_ids(self.template.end_id)
        # Training may sample without a stop token; a plan that is judged has to end.
        self.stop_ids = sampling.stop_ids(self.end_ids) or self.end_ids
        self.batch_size = data.bucket(evaluation.eval_batch_size, parallel.row_shards)
        # Nothing is compiled for a length yet; `fit_prompts` sets it before the first call.
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

    def fit_prompts(self, longest: int) -> None:
        """Take prompts of up to so many tokens, and as many of them at once as there is memory for.

        Where they get longer, the program is compiled again.

        Raises:
            ModelError: the model does not have so many positions.
        """
        description = "longest prompt of eval_splits and response_length"
        models.check_length(
            self.model, longest + self.length, description, self.tokenizer.model_max_length
        )
        # Never shorter again: each length is a program of its own.
        self.prompt_length = max(self.prompt_length, data.bucket(longest))
        rows_in_memory = memory.decoded_rows(self.model, self.prompt_length, self.length)
        if rows_in_memory is not None:
            self.batch_size = min(self.batch_size, self.parallel.row_shards * rows_in_memory)

    def __call__(
        self,
        params: Params,
        encoded: Sequence[list[int]],
        uniforms: np.ndarray,
    ) -> list[Completion]:
        """Complete prompts; similar lengths share a batch.

        Args:
            params: of the language model.
            encoded: token ids of each prompt.
            uniforms: [N, C] fp32 in [0, 1) for each of them: what is sampled does not depend on the rows beside it.
        """
        completions: dict[int, Completion] = {}
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))

        # The batch is cut anew at each call. Where memory runs out, `_halving` calls this again for
        # the same rows, and the batch has become smaller.
        def decode_next() -> dict[int, Completion]:
            size = self.batch_size_for(len(encoded))
            rows = order[len(completions) : len(completions) + size]
            batch = [encoded[i] for i in rows]
            decoded = activity.run_interruptibly(
                lambda: self._decode_batch(params, batch, uniforms[rows], size)
            )
            return dict(zip(rows, decoded, strict=True))

        def rows_per_device() -> int:
            return self.batch_size_for(len(encoded)) // self.parallel.row_shards

        with activity.show("decoding", len(encoded), compiles=True) as progress:
            while len(completions) < len(encoded):
                preemption.check()
                completions |= self._halving.repeated(decode_next, rows_per_device)
                progress.done = len(completions)
        return [completions[i] for i in range(len(encoded))]

    def batch_size_for(self, num_prompts: int) -> int:
        """Return the size of the batches in which so many prompts are completed: few sizes to compile for."""
        shards = self.parallel.row_shards
        # A few rows of a large model take less time than
        # many, so they are padded to a power of two.
        power_of_two = 1 << max(0, num_prompts - 1).bit_length()
        padded = data.bucket(min(power_of_two, data.padded_size(num_prompts)), shards)
        return shards * self._halving.rows(min(self.batch_size, padded) // shards)

    def _decode_batch(
        self,
        params: Params,
        encoded: Sequence[list[int]],
        uniforms: np.ndarray,
        size: int,
    ) -> list[Completion]:
        """Complete prompts in a batch of `size`, which is filled up with copies of the first prompt."""
        num_copies = size - len(encoded)
        filled = [*encoded, *[encoded[0]] * num_copies]
        prompts = data.pad_left(filled, self.prompt_length, self.tokenizer.pad_token_id)
        draws = np.concatenate([uniforms, np.repeat(uniforms[:1], num_copies, axis=0)])
        inputs = self.parallel.put((prompts, draws), 0)
        output = self.parallel.to_host(self._generate(params, *inputs))
        texts = data.decode(
            self.tokenizer, output.completion_ids, output.completion_mask, self.end_ids
        )
        rows = zip(
            texts,
            output.ended,
            output.completion_ids,
            output.completion_mask,
            strict=True,
        )
        completions = []
        for text, ended, ids, mask in rows:
            completions.append(Completion(text, bool(ended), ids[mask].tolist()))
        return completions[: len(encoded)]
