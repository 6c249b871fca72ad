"""Fresh word-level tokenizers, for models that are trained from nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo.config import DataConfig
from jaxppo.config.reading import parse_json
from jaxppo.data.rows import load_split
from jaxppo.data.stream import stream_of
from jaxppo.errors import DataError
from jaxppo.planning import prompts
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets.renamed_rows import NUMBERED
from jaxppo.planning.domains import BLOCKSWORLD, DOMAINS


def words_of_dataset(config: DataConfig) -> list[str]:
    """Return the words that a fresh word-level tokenizer needs for a data set.

    They are those of all problems of the built-in domain or of a stream; those of the list in `vocabulary.json` of a
    folder that has one; else those of the rows of `train_split` and `eval_splits`. Where objects are numbered, all
    numbers are among them.

    Raises:
        DataError: the file is no list of words, or a row is malformed.
    """
    numbers = NUMBERED if config.numbers_objects else ()
    if config.dataset == "blocksworld":
        return prompts.vocabulary(
            [BLOCKSWORLD.pddl], numbers or BLOCKSWORLD.names, config.prompt_style
        )
    if config.stream_domains is not None:
        stream = stream_of(config, "train")
        domains = [DOMAINS[name].pddl for name in stream.domains]
        return prompts.vocabulary(domains, stream.object_names, config.prompt_style)
    # It has all names that problems of the domains may have, also those that no row has yet.
    path = Path(config.dataset) / dataset_files.VOCABULARY_FILE
    if path.is_file():
        return [*_read_words(path), *numbers]
    texts = list(numbers)
    for split in dict.fromkeys((config.train_split, *config.eval_splits)):
        for row in load_split(config, split, None):
            texts += [row["prompt"], row.get("completion") or ""]
    return prompts.words_of(texts)


def _read_words(path: Path) -> list[str]:
    try:
        words = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, DataError) as error:
        raise DataError(f"{path}: expected a JSON list of words, got: {error}") from error
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and word for word in words)
    ):
        raise DataError(f"{path}: expected a JSON list of words, got {words!r:.60}")
    return words


def word_tokenizer(words: Sequence[str] | None = None) -> Any:
    """Make a fast word-level tokenizer: one token per word and per punctuation mark of `prompts.PUNCTUATION`.

    Args:
        words: the vocabulary, in any order; default: that of the built-in domain.

    Returns:
        `PreTrainedTokenizerFast` with pad token `<pad>`, end token `<eos>`, padding on the left.
    """
    # Slow to import, and needed by models that are trained from nothing alone.
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if words is None:
        words = words_of_dataset(DataConfig())
    vocabulary = sorted({*prompts.SPECIAL_WORDS, *words})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}))
    tokenizer.pre_tokenizer = at_blanks = pre_tokenizers.WhitespaceSplit()
    # The style `atoms` has blanks around its only mark, `;`.
    if set(prompts.PUNCTUATION) & (set(vocabulary) - {";"}):
        at_marks = pre_tokenizers.Split(Regex(f"[{prompts.PUNCTUATION}]"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([at_blanks, at_marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=2048,
    )
