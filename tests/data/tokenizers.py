"""Small tokenizers of words, one with a chat template, and of the kinds of known models; data sets for them."""

import json
from functools import cache
from importlib import resources

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
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


# --- as known models have them

LLAMA = ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"])
QWEN = (None, "<|im_end|>", ["<|im_start|>"])
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"])
GEMMA = ("<bos>", "<eos>", ["<start_of_turn>", "<end_of_turn>"])
PHI = (None, "<|endoftext|>", ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"])
WHOLE = {"qwen2_5": QWEN, "qwen3": QWEN, "qwen3_instruct_2507": QWEN, "qwen3_5_think": QWEN, "qwen3_5_nothink": QWEN}
WHOLE |= {"llama3": LLAMA, "llama3_1": LLAMA, "llama3_2": LLAMA, "gemma": GEMMA, "gemma3": GEMMA, "phi3": PHI}
OPENED = {"deepseek_r1_distill": DEEPSEEK, "deepseekv3": DEEPSEEK}
"""These open the thinking in the prompt, and leave it out of the whole chat."""
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen and Llama 3 split words: newlines before a word stay together, so that a completion may follow a prompt."""

LETTERS = sorted({chr(code) for code in range(33, 127)} | {"\u2581"})
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MERGES = [("\u2581", "a"), ("\u2581", "b"), ("a", "c"), ("\u2581", "("), ("\u2581", "\u2581")]


def sentencepiece(normalizer=None, pre_tokenizer=None):
    """As Llama 2 and Mistral: blanks are letters, what is unknown is bytes, and a first word has a blank before it."""
    vocabulary = {token: number for number, token in enumerate(["<unk>", *BYTES, *LETTERS])}
    vocabulary |= {left + right: len(vocabulary) + number for number, (left, right) in enumerate(MERGES)}
    core = Tokenizer(models.BPE(vocabulary, MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if normalizer is not None:
        core.normalizer = normalizer
    if pre_tokenizer is not None:
        core.pre_tokenizer = pre_tokenizer
    fused = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    core.decoder = decoders.Sequence(list(fused))
    return core


def byte_level():
    """As GPT-2, Llama 3 and Qwen."""
    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("\u010a", "\u010a"), ("a", "c"), ("\u0120", "a")]
    core = Tokenizer(models.BPE(letters | {left + right: 256 + i for i, (left, right) in enumerate(merges)}, merges))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), by_bytes])
    core.decoder = decoders.ByteLevel()
    return core


def word_pieces():
    """As BERT: pieces inside of a word are other tokens than at its beginning."""
    pieces = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "play", "##ing", "playing"]
    core = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core


BLANK_FIRST = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
KINDS = {
    "byte-level": byte_level,
    "metaspace": lambda: sentencepiece(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "prepend": lambda: sentencepiece(normalizers.Sequence(BLANK_FIRST)),
    "word pieces": word_pieces,
}


@cache
def tokenizer_of(kind, name=None):
    """A tokenizer of a kind, with the template and the special tokens of a model."""
    bos, eos, special = ("<s>", "</s>", []) if name is None else (WHOLE | OPENED)[name]
    core = KINDS[kind]()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token=eos, pad_token="<pad>")
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    if name is None:
        begin = [("<s>", tokenizer.bos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=begin)
    else:
        tokenizer.add_tokens(["<think>", "</think>"])
        tokenizer.chat_template = (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    return tokenizer
