"""Problems, their splits and prompts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxppo.config.checks import (
    JsonMapping,
    require,
    require_default,
    require_finite,
    require_mapping,
    require_positive,
    without_flag,
)

OBJECTS = range(2, 17)
"""How many objects a built-in problem may have: the vocabulary holds 16 names."""

STREAM = "stream:"
"""What the name of an endless data set starts with."""

SPLITS = ("train", "rl", "test", "test_longer")
"""Splits of generated data."""

DEFAULT_EVAL_SPLITS = ("test", "test_longer")
"""Splits to evaluate on where none are named."""

DEFAULT_PARTS = {
    "sizes": (
        "train=3:2000,4:6000,5:24000",
        "rl=5:400,6:2600",
        "test=4:40,5:400",
        "test_longer=6:1024",
    ),
    "stream_lengths": ("train=1-10", "test_longer=12-20"),
    "stream_rows": ("rl=500", "test=50"),
}
"""Settings of KEY=VALUE words, one for each split or domain, of which a file or flag may change some: the defaults.

The field of such a setting holds what was given, maybe some parts alone: read it through `DataConfig.part` or
`merge_parts`."""

TOKENIZER_ARGUMENTS = (
    "conversation",
    "messages",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
)
TOKENIZER_ARGUMENTS += (
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
)
TOKENIZER_ARGUMENTS += (
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "sanitize_control_tokens",
)
"""What `apply_chat_template` takes for itself, so that it is no argument of the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which problems, in which splits and prompts."""

    dataset: str = "blocksworld"
    """`blocksworld` (built on first use and cached), `stream:DOMAIN,DOMAIN,...` (endless fresh problems, see
    docs/datasets.md), a folder with one <split>.jsonl (or .parquet, .json, .csv) per split, or, through the `datasets`
    library, a hub id, a copy of its files, or a `save_to_disk` folder (alias --data)."""
    dataset_config: str | None = None
    """Which one, where a hub id holds several data sets (its configurations); default: the only one."""
    train_split: str = "train"
    """Split to train on."""
    eval_splits: tuple[str, ...] = DEFAULT_EVAL_SPLITS
    """Splits to evaluate on (alias --splits); train and self_train give the result of the last one. With none, train
    and sft do not evaluate. Those of the default that the data do not have are left out, with a line that says so."""
    prompt_style: str = "atoms"
    """How a problem is written as a prompt, for built-in domains: atoms (its facts as words), brief (in fewer
    words), pddl, or nl (English)."""
    number_objects: bool | None = None
    """Name the objects of planning problems `o1`, `o2`, ... in the order in which the prompt mentions them, and put
    their facts into a random order. Default: in streams."""
    data_seed: int = 0
    """Seed of the built-in problem generators, and of the rows that eval_rows chooses (apart from --seed, so that runs
    share their problems)."""
    sizes: tuple[str, ...] = DEFAULT_PARTS["sizes"]
    """Sizes of generated problems. blocksworld: SPLIT=BLOCKS:ROWS,..., such as train=3:2000,4:6000 (train, rl, test,
    test_longer, which has more blocks than train). Streams: DOMAIN=LOW-HIGH, such as blocksworld=2-6; docs/datasets.md
    says what a size counts, and the default is the smaller half of the generator's training sizes. What is not named
    stays as the preset or the default has it: train=3:2000,4:6000,5:24000 rl=5:400,6:2600 test=4:40,5:400
    test_longer=6:1024."""
    stream_lengths: tuple[str, ...] = DEFAULT_PARTS["stream_lengths"]
    """Streams: lengths of shortest plans, SPLIT=LOW-HIGH: train (test has the same) 1-10, test_longer 12-20, and rl,
    which are also those that --augment states begins; default of rl: those of train."""
    stream_rows: tuple[str, ...] = DEFAULT_PARTS["stream_rows"]
    """Streams: problems of each domain, SPLIT=NUMBER. rl (500) and test (50; test_longer has as many) are made on first
    use and cached. train: without a number sft never sees a problem twice; with one, the problems come again, their
    facts in another order (and so other numbers), or, where objects are not numbered, as --augment says. Other commands
    need this number, and get each problem once."""
    prompt_column: str = "prompt"
    """Column of the prompts in data that are no planning problems, such as `text`."""
    min_prompt_characters: int = without_flag(0)
    """Leave out rows of such data with a shorter prompt."""
    max_prompt_length: int | None = None
    """Most tokens of a prompt. Rows with a longer one are left out, with a line that says how many they are; in a
    stream one is an error. Default: as many as the data have; more than the model has positions for are an error."""
    use_chat_template: bool | None = None
    """Give the model each prompt as the user's turn of a chat, by the tokenizer's chat template; rewards see the plain
    prompt. Default: where the tokenizer has a template and prompts are not cut."""
    system_prompt: str | None = None
    """First turn of every chat that has no system turn of its own; default: none."""
    chat_template_kwargs: JsonMapping = None
    """Arguments for the tokenizer's chat template, as a YAML mapping or as JSON: `{"enable_thinking": false}`."""
    n_shots: int = 0
    """Solved examples before each prompt, drawn from split `train` of the same data: other problems of the same domain
    and prompt style, chosen by data_seed and the row's id. Reward functions have the plain prompt as `prompts`."""
    input_text_length: tuple[int, int] | None = without_flag(None)
    """Cut each prompt to a number of tokens drawn once from this range (both ends may come out), such as [2, 7], as
    with TRL 0.11's LengthSampler; for text to be continued."""

    def __post_init__(self) -> None:
        if self.input_text_length is not None:
            low, high = self.input_text_length
            requirement = "two numbers from 1 on, the lower one first"
            require(1 <= low <= high, "input_text_length", requirement, (low, high))
            requirement = (
                "None or False with input_text_length: text to be continued is no turn of a chat"
            )
            require(
                not self.use_chat_template, "use_chat_template", requirement, self.use_chat_template
            )
            reason = "with input_text_length: text to be continued has no examples"
            require_default(self, "n_shots", reason)
        # Of all splits, also those that this run does not read: a mistake is one in any of them.
        for split in SPLITS:
            parse_sizes(self.part("sizes", split) or "")
        self._check_stream()
        require_positive(self, "max_prompt_length")
        require_mapping(self, "chat_template_kwargs", TOKENIZER_ARGUMENTS)
        require_finite(self, "n_shots", "min_prompt_characters")

    def _check_stream(self) -> None:
        for word in merge_parts("stream_rows", self.stream_rows):
            fits = re.fullmatch(r"(train|rl|test)=[1-9]\d*", word) is not None
            require(fits, "stream_rows", "SPLIT=NUMBER of train, rl or test", word)
        for word in merge_parts("stream_lengths", self.stream_lengths):
            fits = re.fullmatch(r"(train|rl|test_longer)=.*", word) is not None
            require(fits, "stream_lengths", "SPLIT=LOW-HIGH of train, rl or test_longer", word)
        if self.stream_domains is None:
            for name in ("stream_lengths", "stream_rows"):
                words = merge_parts(name, getattr(self, name))
                is_default = words == DEFAULT_PARTS[name]
                require(is_default, name, "nothing unless dataset is a stream", words)
        else:
            require_default(self, "n_shots", "with a stream, whose split train is endless")
            require_default(self, "dataset_config", "with a stream")

    def part(self, name: str, key: str) -> str | None:
        """Return the value of a split or domain in `sizes`, `stream_lengths` or `stream_rows`; None without one."""
        words = merge_parts(name, getattr(self, name))
        return dict(word.split("=", 1) for word in words).get(key)

    @property
    def domain_sizes(self) -> tuple[str, ...]:
        """Sizes of a stream's problems as DOMAIN:LOW-HIGH, without the domains of which nothing is said."""
        # `sizes` says of splits what built-in data has, and of domains what a stream has.
        sizes = []
        for word in merge_parts("sizes", self.sizes):
            name, span = word.split("=", 1)
            if name not in SPLITS:
                sizes.append(f"{name}:{span}")
        return tuple(sizes)

    def lengths_of(self, split: str) -> str | None:
        """Return the lengths of a stream's plans in a split; None for a split that a stream does not have."""
        # Test problems are as long as those of training, and
        # so are those of rl, unless it has lengths of its own.
        if split == "test" or (split == "rl" and not self.part("stream_lengths", "rl")):
            split = "train"
        return self.part("stream_lengths", split)

    def rows_of(self, split: str) -> int | None:
        """Return how many problems of each domain of a stream are in a split; None: endless."""
        rows = self.part("stream_rows", split if split in ("train", "rl") else "test")
        return None if rows is None else int(rows)

    @property
    def names_eval_splits(self) -> bool:
        """Whether the evaluation splits were named, by a flag, a file or a preset."""
        # By identity: who names the two of the default wants both.
        return self.eval_splits is not DEFAULT_EVAL_SPLITS

    @property
    def is_generated(self) -> bool:
        """Whether the problems are made here, and not read."""
        return self.dataset == "blocksworld" or self.stream_domains is not None

    @property
    def numbers_objects(self) -> bool:
        """Whether objects are numbered as the prompt mentions them."""
        return (
            self.stream_domains is not None if self.number_objects is None else self.number_objects
        )

    @property
    def stream_domains(self) -> tuple[str, ...] | None:
        """The domains of `stream:...`; None for other data."""
        if not self.dataset.startswith(STREAM):
            return None
        return tuple(name.strip() for name in self.dataset.removeprefix(STREAM).split(","))

    @property
    def headline_split(self) -> str | None:
        """The split that a run of `train` or `self_train` is about; None without any."""
        return self.eval_splits[-1] if self.eval_splits else None


def as_list(value: Any) -> list[Any]:
    """Return the words of a setting of KEY=VALUE words, of which a file may give a single one without brackets."""
    return list(value) if isinstance(value, list | tuple) else [value]


def merge_parts(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return words KEY=VALUE over the defaults, in a fixed order; of a key that comes twice the last counts.

    Args:
        name: one of `DEFAULT_PARTS`.
        words: what was given for it; those parts that they do not name have their defaults.

    Raises:
        ConfigError: a word has another form.
    """
    parts = {}
    for word in (*DEFAULT_PARTS[name], *words):
        key, equals, value = word.partition("=")
        require(bool(key and equals and value), name, "KEY=VALUE", word)
        parts[key] = value
    # Splits in their own order, then domains: configurations
    # that mean the same are equal, however they were written.
    keys = dict.fromkeys(key for key in (*SPLITS, *parts) if key in parts)
    return tuple(f"{key}={parts[key]}" for key in keys)


def parse_sizes(text: str) -> dict[int, int]:
    """Read `"5:100,6:200"` as {objects: rows}.

    Raises:
        ConfigError: the text is not a comma-separated list of `objects:rows` with positive integers.
    """
    pairs = re.findall(r"(\d+):(\d+)", text)
    well_formed = re.fullmatch(r"\s*\d+:\d+(\s*,\s*\d+:\d+)*\s*", text) is not None
    require(well_formed, "sizes", "a list such as '5:100,6:200' (objects:rows)", text)
    sizes = {int(objects): int(rows) for objects, rows in pairs}
    positive = all(objects > 0 and rows > 0 for objects, rows in sizes.items())
    require(positive, "sizes", "positive numbers of objects and rows", text)
    require(len(sizes) == len(pairs), "sizes", "each number of objects once", text)
    require(all(objects in OBJECTS for objects in sizes), "sizes", "2 to 16 objects", text)
    return sizes
