"""A reward model as a reward function: a full model, or an adapter on the policy's frozen base.

A model that shares the policy's vocabulary scores the sampled ids. Any other model gets the text, through its own
tokenizer; TRL requires a shared one. Source: TRL issues 1763 and 3595; LLaMA-Factory `reward_model_type`, of
which `ModelReward` is "full" and, on a shared base, "lora".
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo import hf, models
from jaxppo.data import start_ids, token_ids
from jaxppo.errors import DataError, ModelError
from jaxppo.hf import peft
from jaxppo.nn import ModelConfig, lora
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.score_head import RowScorer
from jaxppo.types import Params


class ModelReward:
    """Scores prompt and completion with a reward model, minus a constant.

    The score is read at the last real token, by lengths. Rows that are too long lose tokens on the left, where the
    prompt begins; they are counted and logged as `reward/truncated`.

    Args:
        model: configuration of the reward model.
        params: {"trunk", "score"}, the trunk maybe with an adapter; arrays that are on the devices already are shared.
        tokenizer: of the reward model.
        parallel: devices.
        batch_size: most rows scored at once, over all devices.
        max_length: most tokens of a row that the model sees; default: all that it has positions for.
        policy_tokenizer: of the ids that will come; default: the same.
        policy_end_ids: any of its tokens that ends a completion; default: its end of sequence.
        append_eos: end every row with the end of sequence, as a reward model may be trained to expect, also where the
            completion was cut off.
        bias: subtracted from every score, such as the mean score of demonstrations.
        name: for metrics and messages.

    Attributes:
        shares_vocabulary: whether ids are scored as they come, and not the text.
        truncated: rows so far that were too long.

    Raises:
        ModelError: the tokenizer has more tokens than the model, or `max_length` is beyond its positions.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        tokenizer: Any,
        *,
        parallel: DataParallel,
        batch_size: int = 64,
        max_length: int | None = None,
        policy_tokenizer: Any = None,
        policy_end_ids: Collection[int] | None = None,
        append_eos: bool = False,
        bias: float = 0.0,
        name: str = "reward_model",
    ):
        hf.check_tokenizer(tokenizer, model, name)
        if max_length is not None:
            models.check_length(model, max_length, f"{name}, max_length")
        self.__name__, self.bias, self.truncated = name, bias, 0
        self.shares_vocabulary = policy_tokenizer is None or same_vocabulary(tokenizer, policy_tokenizer)
        self.params = parallel.put(params)
        self._tokenizer, self._vocab_size, self._append_eos = tokenizer, model.vocab_size, append_eos
        own_end = (policy_tokenizer or tokenizer).eos_token_id
        self._policy_end_ids = (own_end,) if policy_end_ids is None else policy_end_ids
        self._max_length = model.max_length if max_length is None else max_length
        self._scorer = RowScorer(model, parallel, batch_size, self._max_length)

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        *,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions.

        Args:
            prompts: text of each prompt.
            completions: text of each completion, without the end of sequence that closes it.
            completion_ids: the policy's ids of each completion, with it.
            prompt_ids: the policy's ids of each prompt, without padding; default: the prompts are tokenised.
            log_metric: told how many rows were too long.
            columns: not used.

        Returns:
            One score per completion.

        Raises:
            DataError: a row has no token at all, or one that the model does not have.
        """
        del columns
        if self.shares_vocabulary:
            rows = self._rows_of_ids(prompts, completion_ids, prompt_ids)
        else:
            rows = self._rows_of_text(prompts, completions, completion_ids)
        if self._append_eos:
            end = self._tokenizer.eos_token_id
            rows = [row if row[-1:] == [end] else [*row, end] for row in rows]
        self._check(rows)
        cut = self._count_overlong(rows)
        if log_metric is not None:
            log_metric("reward/truncated", float(cut))
        rows = rows if self._max_length is None else [row[-self._max_length :] for row in rows]
        return (self._scorer(self.params, rows) - np.float32(self.bias)).tolist()

    def _rows_of_ids(
        self,
        prompts: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        prompt_ids: Sequence[Sequence[int]] | None,
    ) -> list[list[int]]:
        before = self.encode(prompts) if prompt_ids is None else prompt_ids
        return [[*prompt, *self._ended(ids)] for prompt, ids in zip(before, completion_ids, strict=True)]

    def _ended(self, ids: Sequence[int]) -> Sequence[int]:
        """Return a completion with the end that the model has learned, whichever of its ends the policy chose."""
        is_ended = len(ids) > 0 and ids[-1] in self._policy_end_ids
        return [*ids[:-1], self._tokenizer.eos_token_id] if is_ended else ids

    def _rows_of_text(
        self, prompts: Sequence[str], completions: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Tokenise the texts, and end each completion that the policy ended, which the text alone does not show."""
        encoded = self.encode([prompt + text for prompt, text in zip(prompts, completions, strict=True)])
        end, ends = self._tokenizer.eos_token_id, self._policy_end_ids
        return [
            [*row, end] if len(ids) and ids[-1] in ends else row
            for row, ids in zip(encoded, completion_ids, strict=True)
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts by the reward model's tokenizer, with what it puts before a text.

        Raises:
            DataError: it cannot encode one.
        """
        start = start_ids(self._tokenizer)
        return [[*start, *ids] for ids in token_ids(self._tokenizer, texts, self.__name__)]

    def _check(self, rows: list[list[int]]) -> None:
        for number, row in enumerate(rows):
            if not row:
                raise DataError(f"{self.__name__}: expected a token in prompt or completion, got none in row {number}")
            if max(row) >= self._vocab_size:
                expected = f"ids below its vocab_size={self._vocab_size}"
                raise DataError(f"{self.__name__}: expected {expected}, got {max(row)} in row {number}")

    def _count_overlong(self, rows: list[list[int]]) -> int:
        """Count the rows that are too long."""
        cut = 0 if self._max_length is None else sum(len(row) > self._max_length for row in rows)
        self.truncated += cut
        return cut


def same_vocabulary(first: Any, second: Any) -> bool:
    """Return whether two tokenizers mean the same by every id, the end of sequence included.

    How they pad does not matter, since no mask is read from ids.
    """
    return first.eos_token_id == second.eos_token_id and first.get_vocab() == second.get_vocab()


def load_reward_model(
    path: str, policy_tokenizer: Any, parallel: DataParallel, *, dtype: str = "float32", **settings: Any
) -> ModelReward:
    """Read a reward model with its tokenizer, and the constant to subtract that jaxppo may have stored with it.

    Args:
        path: folder of a `...ForSequenceClassification` with one label, or a hub id, see `hf.find_model`.
        policy_tokenizer: of the ids that will be scored.
        parallel: devices.
        dtype: of the computation, "float32" or "bfloat16"; scores are float32 in any case.
        settings: further arguments of `ModelReward`.

    Raises:
        ModelError: as for `hf.load_model` and `ModelReward`, or the folder holds no score head.
    """
    folder = hf.find_model(path)
    config, head = hf.read_config(folder)
    if head != "score":
        raise ModelError(f"{folder}: expected a reward model (...ForSequenceClassification), got one without its head")
    loaded = hf.load_model(folder, placement=parallel.placement)
    if loaded.fresh:
        raise ModelError(f"{folder}: expected a trained score head, got no tensor {', '.join(loaded.fresh)}")
    settings = {"bias": hf.reward_bias(config), "name": Path(path).name} | settings
    model, tokenizer = models.computing_in(config, dtype), hf.load_tokenizer(folder)
    return ModelReward(
        model, loaded.params, tokenizer, parallel=parallel, policy_tokenizer=policy_tokenizer, **settings
    )


def load_reward_adapter(
    path: str, model: ModelConfig, base: Params, tokenizer: Any, parallel: DataParallel, **settings: Any
) -> ModelReward:
    """Read a LoRA adapter with a score head as a reward model on a base that is there already, without a copy of it.

    Args:
        path: PEFT folder of task SEQ_CLS.
        model: configuration of the base, as it computes.
        base: {"trunk", ...}, the policy's frozen weights; on the devices as from `parallel.put`, or they are copied.
        tokenizer: of the base.
        parallel: devices.
        settings: further arguments of `ModelReward`.

    Raises:
        ModelError: as for `peft.load_adapter`, or the folder has no score head.
    """
    shape, adapter = peft.load_adapter(path, model, base)
    if "score" not in adapter:
        raise ModelError(f"{path}: expected a score head (task SEQ_CLS) beside the adapter, got none")
    params = lora.attach({"trunk": base["trunk"]}, adapter, shape.scale)
    settings = {"bias": peft.load_reward_bias(path), "name": Path(path).name} | settings
    return ModelReward(model, params, tokenizer, parallel=parallel, **settings)
