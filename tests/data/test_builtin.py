"""Splits that are drawn: shipped, or built once for a version of the generators."""

import hashlib
import json

import pytest

from jaxppo import data
from jaxppo.config import DataConfig, EvaluateConfig, SFTConfig, TrainConfig, parse_sizes
from jaxppo.config.sources import parse_cli
from jaxppo.data import builtin
from jaxppo.errors import DataError
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.datasets.stream import Stream, stream_row
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import PROMPT_STYLES


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path / "cache"))


SMALL = DataConfig(sizes=("train=3:4", "rl=3:2", "test=3:3", "test_longer=4:2"))


def test_load_split_builds_once_and_then_reads_the_cache(monkeypatch):
    built = data.load_split(SMALL, "test")
    assert [row["n_objects"] for row in built] == [3, 3, 3]
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "build_split", lambda **_: pytest.fail("built again"))
        assert data.load_split(SMALL, "test") == built
    other = data.load_split(DataConfig(sizes=("test=3:4",)), "test")  # another request, another file
    assert len(other) == 4
    assert data.load_split(SMALL, "test") == built
    monkeypatch.setattr(datasets, "GENERATOR_VERSION", 99)
    monkeypatch.setattr(datasets, "build_split", lambda **_: other)
    assert data.load_split(SMALL, "test") == other


@pytest.mark.parametrize(
    ("split", "most"),
    [
        *((split, 10) for split in ("rl", "test", "test_longer")),
        pytest.param("test", 400, marks=pytest.mark.full),
        pytest.param("test_longer", 1024, marks=pytest.mark.slow),
        pytest.param("rl", 2600, marks=pytest.mark.slow),
    ],
)
def test_the_shipped_splits_begin_with_what_would_be_built(split, most, monkeypatch):
    """Of each size the first problems: later ones do not change them."""
    config = DataConfig()
    sizes = parse_sizes(config.part("sizes", split))
    built = datasets.build_split(split, sizes={n: min(rows, most) for n, rows in sizes.items()}, seed=0, unique=True)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "build_split", lambda **_: pytest.fail("built"))
        shipped = data.load_split(config, split)
    by_size = {n: [row for row in shipped if row["n_objects"] == n] for n in sizes}
    assert {n: len(rows) for n, rows in by_size.items()} == sizes
    assert built == [row for rows in by_size.values() for row in rows[:most]]
    other = data.generated_split(DataConfig(data_seed=1, sizes=(f"{split}=3:2",)), split)
    assert len(other.read()) == 2 and builtin.SHIPPED_DATA not in other.folder().parents


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("split", ["rl", "test", "test_longer"])
def test_the_shipped_splits_of_a_stream_begin_with_what_would_be_drawn(split, every, monkeypatch):
    config = parse_cli(TrainConfig, "train", ["--preset", "planning-multi"]).data
    monkeypatch.setattr(builtin, "get_or_build", lambda *_: pytest.fail("drawn"))
    rows = data.load_split(config, split)
    stream, num_domains = data.stream_of(config, split), len(config.stream_domains)
    per_domain = len(rows) // num_domains
    for domain in range(0, num_domains, every):
        assert rows[domain * per_domain] == stream_row(stream, domain)
    if split != "rl":  # `sft` and `evaluate` have the same
        for config_type, command in (SFTConfig, "sft"), (EvaluateConfig, "evaluate"):
            assert data.load_split(parse_cli(config_type, command, ["--preset", "planning-multi"]).data, split) == rows


ROWS_OF_VERSION_1 = {
    "built-in": "6a7dfbc19d46",
    "blocksworld": "20f3d54a2521",
    "childsnack": "4312a8fd3bdb",
    "depots": "b2fbc5805d3b",
    "driverlog": "d120d8094e80",
    "ferry": "e831abd3e761",
    "gripper": "c72de98dae39",
    "hanoi": "fc93544f9555",
    "logistics": "d317b2a4d906",
    "miconic": "3c5cde8a1fee",
    "satellite": "21c2edbaf33c",
    "storage": "65a204604b35",
    "visitall": "9ea21ba595df",
}
"""Digests of a few rows of each domain in every prompt style."""


def test_generators_give_the_rows_of_their_version():
    """Where this fails on purpose, raise GENERATOR_VERSION and write the new digests here."""
    assert datasets.GENERATOR_VERSION == 1
    found = {"built-in": datasets.build_split("train", sizes={3: 2, 4: 2}, seed=0, unique=True)}
    for domain in DOMAINS:
        options = {"split": "train", "domains": (domain,), "sizes": (), "lengths": "1-8", "seed": 0, "numbered": False}
        streams = [Stream(**options, prompt_style=style) for style in PROMPT_STYLES]
        found[domain] = [stream_row(each, number) for each in streams for number in range(2)]
    texts = {name: json.dumps(rows, sort_keys=True).encode() for name, rows in found.items()}
    assert {name: hashlib.sha256(text).hexdigest()[:12] for name, text in texts.items()} == ROWS_OF_VERSION_1


def test_all_splits_with_too_few_problems_are_named_at_once():
    with pytest.raises(DataError, match=r"'test'.*'test_longer'"):
        data.make_splits(DataConfig(sizes=("test=3:99", "test_longer=3:99")), ["test", "test_longer"])
