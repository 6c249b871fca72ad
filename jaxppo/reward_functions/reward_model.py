"""A reward model as a reward function: a full model, or an adapter on the policy's frozen base.

A model that shares the policy's vocabulary scores the sampled ids, after the prompt as the policy had it. Any other
model gets the turns through its own tokenizer and chat template, or the text where it has no template; TRL requires a
shared vocabulary. Source: TRL issues 1763 and 3595; LLaMA-Factory `reward_model_type`, of which `ModelReward` is "full"
and, on a shared base, "lora".
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxppo import hf, models
from jaxppo.config import DataConfig
from jaxppo.data import make_chat_template, start_ids, token_ids
from jaxppo.errors import DataError, ModelError
from jaxppo.hf import peft
from jaxppo.nn import ModelConfig, lora
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.score_head import RowScorer
from jaxppo.types import Params


class ModelReward:
    """Scores prompt and completion with a reward model, minus a constant.

    The score is read at the last real token, by lengths. Rows that are too long lose tokens on the left, where the
    prompt begins; they are logged as `reward/truncated`.

    Args:
        model: configuration of the reward model.
        params: {"trunk", "score"}, the trunk maybe with an adapter; arrays that are on the devices already are shared.
        tokenizer: of the reward model.
        parallel: devices.
        batch_size: most rows scored at once, over all devices.
        policy_tokenizer: of the ids that will come; default: the same.
        policy_end_ids: any of its tokens that ends a completion; default: its end of sequence.
        append_eos: end every row with the end of sequence, as a reward model may be trained to expect, also where the
            completion was cut off.
        bias: subtracted from every score, such as the mean score of demonstrations.
        system_prompt: first turn that the model's own chat template gets before chats without a system turn.
        name: for metrics and messages.

    Attributes:
        shares_vocabulary: whether ids are scored as they come, and not the text.
        reads: what it gets, in a few words.

    Raises:
        ModelError: the tokenizer has more tokens than the model.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        tokenizer: Any,
        *,
        parallel: DataParallel,
        batch_size: int = 64,
        policy_tokenizer: Any = None,
        policy_end_ids: Collection[int] | None = None,
        append_eos: bool = False,
        bias: float = 0.0,
        system_prompt: str | None = None,
        name: str = "reward_model",
    ):
        hf.check_tokenizer(tokenizer, model, name)
        self.__name__ = name
        self.bias = bias
        self.shares_vocabulary = policy_tokenizer is None or same_vocabulary(
            tokenizer, policy_tokenizer
        )
        # No copy of what is on the devices already, such as the policy's base under an adapter.
        self.params = parallel.put(params)
        self._tokenizer = tokenizer
        self._vocab_size = model.vocab_size
        self._append_eos = append_eos
        if policy_end_ids is None:
            policy_end_ids = ((policy_tokenizer or tokenizer).eos_token_id,)
        self._policy_end_ids = tuple(policy_end_ids)
        # A system prompt has its place in a template alone.
        has_template = bool(getattr(tokenizer, "chat_template", None))
        self._template = make_chat_template(
            tokenizer, DataConfig(system_prompt=system_prompt if has_template else None)
        )
        self.reads = "the policy's tokens"
        if not self.shares_vocabulary:
            self.reads = f"texts by its own tokenizer: {self._template.describe()}"
        self._max_length = model.max_length
        self._scorer = RowScorer(model, parallel, batch_size)

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None,
        *,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        messages: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions.

        Args:
            prompts: text of each prompt.
            completions: text of each completion, without the end of sequence that closes it.
            completion_ids: the policy's ids of each completion, with it; None: the texts are scored, each as ended.
            prompt_ids: the policy's ids of each prompt, without padding; default: the prompts are tokenized.
            messages: the turns before each completion, None for a plain prompt.
            log_metric: gets how many rows were too long, as `reward/truncated`.
            columns: not used.

        Returns:
            One score per completion.

        Raises:
            DataError: a row has no token at all, or one that the model does not have.
        """
        del columns
        # Ids where that is possible: a text may be cut into other tokens than were sampled.
        if self.shares_vocabulary and completion_ids is not None:
            rows = self._rows_of_ids(prompts, completion_ids, prompt_ids)
        else:
            rows = self._rows_of_text(prompts, completions, completion_ids, messages)
        if self._append_eos:
            rows = [self._with_end(row) for row in rows]
        self._check(rows)
        # Of a row that is too long, the prompt loses its beginning:
        # the score is read at the end of the completion.
        num_truncated = 0
        if self._max_length is not None:
            num_truncated = sum(len(row) > self._max_length for row in rows)
            rows = [row[-self._max_length :] for row in rows]
        if log_metric is not None:
            log_metric("reward/truncated", float(num_truncated))
        return (self._scorer(self.params, rows) - np.float32(self.bias)).tolist()

    def _rows_of_ids(
        self,
        prompts: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        prompt_ids: Sequence[Sequence[int]] | None,
    ) -> list[list[int]]:
        rows = []
        if prompt_ids is None:
            prompt_ids = self.encode(prompts)
        for prompt, ids in zip(prompt_ids, completion_ids, strict=True):
            # Whichever end the policy chose, the reward model was trained on the first.
            end = self._policy_end_ids[:1] if self._is_ended(ids) else ids[-1:]
            rows.append([*prompt, *ids[:-1], *end])
        return rows

    def _rows_of_text(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None,
        messages: Sequence[Any] | None,
    ) -> list[list[int]]:
        """Tokenize by the model's own template, and end those completions that the policy ended."""
        texts = []
        ended = []
        for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            row = {
                "id": f"{self.__name__}, row {number}",
                "prompt": prompt,
                "completion": completion,
                "messages": messages[number]
                if messages is not None and self._template.is_used
                else None,
            }
            text = self._template.row_texts(row)
            is_ended = completion_ids is None or self._is_ended(completion_ids[number])
            # The template closes every completion; one that was cut off stays open.
            shown = (
                text.completion
                if is_ended
                else text.completion.removesuffix(self._template.end_text)
            )
            texts.append(text.prompt + shown)
            ended.append(is_ended)
        rows = self.encode(texts)
        return [
            self._with_end(row) if is_ended else row
            for row, is_ended in zip(rows, ended, strict=True)
        ]

    def _with_end(self, row: list[int]) -> list[int]:
        end = self._template.end_id
        return row if row[-1:] == [end] else [*row, end]

    def _is_ended(self, ids: Sequence[int]) -> bool:
        """Return whether the policy ended a completion, which the text alone does not show."""
        return len(ids) > 0 and ids[-1] in self._policy_end_ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts by the reward model's tokenizer, with what it puts before a text.

        Raises:
            DataError: it cannot encode one.
        """
        start = start_ids(self._tokenizer)
        encoded = token_ids(self._tokenizer, texts, self.__name__)
        # A chat template writes the beginning of sequence itself.
        return [ids if ids[: len(start)] == start else [*start, *ids] for ids in encoded]

    def _check(self, rows: list[list[int]]) -> None:
        for number, row in enumerate(rows):
            if not row:
                raise DataError(
                    f"{self.__name__}: expected a token in prompt or completion, got none in row {number}"
                )
            if max(row) >= self._vocab_size:
                rule = f"ids below its vocab_size={self._vocab_size}"
                raise DataError(f"{self.__name__}: expected {rule}, got {max(row)} in row {number}")


def same_vocabulary(first: Any, second: Any) -> bool:
    """Return whether two tokenizers mean the same by every id, the end of sequence included.

    How they pad does not matter, since no mask is read from ids.
    """
    return first.eos_token_id == second.eos_token_id and first.get_vocab() == second.get_vocab()


def load_reward_model(
    path: str,
    policy_tokenizer: Any,
    parallel: DataParallel,
    *,
    dtype: str = "float32",
    **settings: Any,
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
        raise ModelError(
            f"{folder}: expected a reward model (...ForSequenceClassification), got one without its head"
        )
    loaded = hf.load_model(folder, placement=parallel.placement)
    # A head of random numbers would give rewards, too.
    if loaded.fresh:
        raise ModelError(
            f"{folder}: expected a trained score head, got no tensor {', '.join(loaded.fresh)}"
        )
    settings = {"bias": hf.reward_bias(config), "name": Path(path).name} | settings
    return ModelReward(
        models.with_dtype(config, dtype),
        loaded.params,
        hf.load_tokenizer(folder),
        parallel=parallel,
        policy_tokenizer=policy_tokenizer,
        **settings,
    )


def load_reward_adapter(
    path: str,
    model: ModelConfig,
    base: Params,
    tokenizer: Any,
    parallel: DataParallel,
    **settings: Any,
) -> ModelReward:
    """Read a LoRA adapter with a score head as a reward model on a base that is loaded already, without a copy of it.

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
        raise ModelError(
            f"{path}: expected a score head (task SEQ_CLS) beside the adapter, got none"
        )
    # Of the base the trunk alone: the heads of the policy have no part in the score.
    params = lora.attach({"trunk": base["trunk"]}, adapter, shape.scale)
    settings = {"bias": peft.load_reward_bias(path), "name": Path(path).name} | settings
    return ModelReward(model, params, tokenizer, parallel=parallel, **settings)
