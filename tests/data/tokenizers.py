"""Small tokenizers with a known vocabulary, one of them with a chat template, and data sets for them."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = (
    "<pad> <eos> <s> <|system|> <|user|> <|assistant|> <|end|> be brief on b a unstack stack ; ### prompt completion"
)
SPECIAL = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TURN = "<|{{ message['role'] }}|>\n{{ message['content'] }} <|end|>\n"
ASKED = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
TEMPLATE = "<s> {% for message in messages %}" + TURN + "{% endfor %}" + ASKED


def chat_tokenizer(template=TEMPLATE, eos="<eos>", words=WORDS):
    """A word-level tokenizer that puts `<s>` in front where it is asked for special tokens."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words.split())}))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token=eos, pad_token="<pad>", padding_side="left"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [word for word in SPECIAL if word != eos]})
    tokenizer.chat_template = template
    return tokenizer


def words(tokenizer, ids):
    return " ".join(tokenizer.convert_ids_to_tokens(ids))


def word_tokenizer(words, eos="<eos>", pad="<pad>"):
    """One token per word; an unknown word is an error."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, pad_token=pad)


def write_rows(folder, **splits):
    """Write a data set folder; returns its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)
