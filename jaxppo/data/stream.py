"""Streams as data sets: splits that are generated once and cached, beside the endless one for training."""

import json
from collections.abc import Collection
from dataclasses import asdict, replace

from jaxppo.config import SPLITS, DataConfig
from jaxppo.data.builtin import GeneratedSplit
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.datasets.config import parse_lengths
from jaxppo.planning.datasets.stream import Stream, distinct_rows


def stream_of(config: DataConfig, split: str, augment: Collection[str] = ()) -> Stream:
    """Return the stream that a split draws from.

    Raises:
        ConfigError: unknown domains, or sizes or lengths that no domain has.
        DataError: an unknown split.
    """
    lengths = config.lengths_of(split)
    if lengths is None or split not in SPLITS:
        raise DataError(
            f"train_split, eval_splits: expected one of {', '.join(SPLITS)} for a stream, got {split!r}"
        )
    # A problem's form decides its partition. `test` and `test_longer` draw from the same one, so
    # that the lengths of their plans have to keep them apart.
    test_lengths = parse_lengths(config.lengths_of("test") or "", "stream_lengths")
    longer_lengths = parse_lengths(config.lengths_of("test_longer") or "", "stream_lengths")
    if longer_lengths[0] <= test_lengths[-1]:
        raise ConfigError(
            f"stream_lengths: expected test_longer above train ({config.lengths_of('train')}), got "
            f"{config.lengths_of('test_longer')}"
        )
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


def stream_split(config: DataConfig, split: str) -> GeneratedSplit:
    """Return a finite split of a stream: different problems, as many of each domain.

    Raises:
        ConfigError, DataError: as for `stream_of`; or the split is endless: train without its number of `stream_rows`.
    """
    count = config.rows_of(split)
    if count is None:
        raise DataError(
            "stream_rows: expected a number of problems of split train, which is endless for sft alone, got none"
        )
    # A limited number of problems comes again and again where
    # `sft` trains on them; a split has each of them once.
    stream = replace(stream_of(config, split), problems=None)
    request = json.loads(json.dumps(asdict(stream) | {"rows": count}))
    return GeneratedSplit("stream", split, request, lambda: distinct_rows(stream, count))
