"""Streams as data sets: splits that are drawn once and kept in the cache, beside the endless one for training."""

import json
from collections.abc import Collection
from dataclasses import asdict, replace

from jaxppo.config import DataConfig
from jaxppo.data.builtin import Drawn
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.datasets.config import parse_lengths
from jaxppo.planning.datasets.stream import Stream, distinct_rows

_BANDS = {"test": "lengths", "test_longer": "long_lengths"}
"""Splits of one partition, which the lengths of their plans keep apart, and the settings of these."""


def stream_of(config: DataConfig, split: str, augment: Collection[str] = ()) -> Stream:
    """Return the stream that a split draws from.

    Raises:
        ConfigError: unknown domains, or sizes or lengths that there are not.
        DataError: an unknown split.
    """
    lengths = {
        "train": config.stream_lengths,
        "rl": config.stream_rl_lengths or config.stream_lengths,
        "test": config.stream_lengths,
        "test_longer": config.stream_long_lengths,
    }
    if split not in lengths:
        expected = f"one of {', '.join(lengths)} for a stream"
        raise DataError(f"train_split, eval_splits: expected {expected}, got {split!r}")
    short, long = (parse_lengths(lengths[name], f"stream_{key}") for name, key in _BANDS.items())
    if long[0] <= short[-1]:
        expected = f"lengths above those of stream_lengths ({config.stream_lengths})"
        raise ConfigError(f"stream_long_lengths: expected {expected}, got {config.stream_long_lengths}")
    stream = Stream(
        split=split,
        domains=config.stream_domains or (),
        sizes=config.stream_sizes,
        lengths=lengths[split],
        prompt_style=config.prompt_style,
        seed=config.data_seed,
        numbered=config.numbers_objects,
        problems=config.stream_problems if split == "train" else None,
        augment=tuple(sorted(augment)),
        begun_lengths=config.stream_rl_lengths if "states" in augment else None,
    )
    stream.check()
    return stream


def drawn_stream(config: DataConfig, split: str) -> Drawn:
    """Return a finite split of a stream: different problems, as many of each domain.

    Raises:
        ConfigError, DataError: as for `stream_of`; or the split is endless: train without `stream_problems`.
    """
    counts = {"train": config.stream_problems, "rl": config.stream_rl_rows}
    count = counts.get(split, config.stream_test_rows)
    if count is None:
        expected = "a number of problems of split train, which is endless for sft alone"
        raise DataError(f"stream_problems: expected {expected}, got None")
    stream = replace(stream_of(config, split), problems=None)  # each of them once
    request = json.loads(json.dumps(asdict(stream) | {"rows": count}))
    return Drawn("stream", split, request, lambda: distinct_rows(stream, count))
