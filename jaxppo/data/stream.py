"""Streams as data sets: splits that are drawn once and kept in the cache, beside the endless one for training."""

import json
from collections.abc import Collection
from dataclasses import asdict, replace

from jaxppo.config import SPLITS, DataConfig
from jaxppo.data.builtin import Drawn
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.datasets.config import parse_lengths
from jaxppo.planning.datasets.stream import Stream, distinct_rows


def stream_of(config: DataConfig, split: str, augment: Collection[str] = ()) -> Stream:
    """Return the stream that a split draws from.

    Raises:
        ConfigError: unknown domains, or sizes or lengths that there are not.
        DataError: an unknown split.
    """
    lengths = config.lengths_of(split)
    if lengths is None or split not in SPLITS:
        expected = f"one of {', '.join(SPLITS)} for a stream"
        raise DataError(f"train_split, eval_splits: expected {expected}, got {split!r}")
    # One partition of problems, which the lengths of their plans keep apart.
    short, long = (parse_lengths(config.lengths_of(name) or "", "stream_lengths") for name in ("test", "test_longer"))
    if long[0] <= short[-1]:
        expected = f"test_longer above train ({config.lengths_of('train')})"
        raise ConfigError(f"stream_lengths: expected {expected}, got {config.lengths_of('test_longer')}")
    stream = Stream(
        split=split,
        domains=config.stream_domains or (),
        sizes=config.domain_sizes,
        lengths=lengths,
        prompt_style=config.prompt_style,
        seed=config.data_seed,
        numbered=config.numbers_objects,
        problems=config.rows_of("train") if split == "train" else None,
        augment=tuple(sorted(augment)),
        begun_lengths=config.part("stream_lengths", "rl") if "states" in augment else None,
    )
    stream.check()
    return stream


def drawn_stream(config: DataConfig, split: str) -> Drawn:
    """Return a finite split of a stream: different problems, as many of each domain.

    Raises:
        ConfigError, DataError: as for `stream_of`; or the split is endless: train without its number of `stream_rows`.
    """
    count = config.rows_of(split)
    if count is None:
        expected = "a number of problems of split train, which is endless for sft alone"
        raise DataError(f"stream_rows: expected {expected}, got none")
    stream = replace(stream_of(config, split), problems=None)  # each of them once
    request = json.loads(json.dumps(asdict(stream) | {"rows": count}))
    return Drawn("stream", split, request, lambda: distinct_rows(stream, count))
