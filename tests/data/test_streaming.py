"""Rows that are read while a run goes on: each once in an epoch, shuffled, and the same ones after a resume."""

import json
import tracemalloc
from functools import cache

import datasets as hugging_face
import pytest

from jaxppo import data
from jaxppo.config import DataConfig, SFTConfig, StreamingConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.data.streaming import find_parts
from jaxppo.errors import ConfigError, DataError

COLUMNS = {"prompt": str, "completion": str}
ROWS = [{"prompt": f"on b{i} a", "completion": "a " * (1 + i % 5), "note": None if i % 2 else i} for i in range(100)]


def stream_of(folder, buffer_size, seed=0):
    streaming = StreamingConfig(streaming=True, shuffle_buffer_size=buffer_size)
    return data.open_stream(DataConfig(dataset=str(folder)), streaming, seed, None, COLUMNS)


def write(folder, kind):
    """Write the rows in a file of a kind, in parts, in the layout of the hub, or as `datasets` saves them."""
    table = hugging_face.Dataset.from_list(ROWS)
    if kind == "saved":
        hugging_face.DatasetDict({"train": table}).save_to_disk(folder, num_shards={"train": 3})
    elif kind in ("parts", "hub"):
        parts = folder / ("train.parquet" if kind == "parts" else "data")
        parts.mkdir()
        for number in range(3):
            table.shard(3, number).to_parquet(parts / f"train-0000{number}-of-00003.parquet")
    else:
        write_file = {"csv": table.to_csv, "parquet": table.to_parquet}.get(kind, table.to_json)
        write_file(folder / f"train.{kind}")
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "parts", "hub", "saved"])
def test_a_stream_gives_every_row_once_an_epoch_and_goes_on_from_any_of_them(tmp_path, monkeypatch, kind):
    folder, count = write(tmp_path, kind), len(ROWS)
    monkeypatch.setattr("jaxppo.data.streaming.find_parts", cache(find_parts))  # `datasets` takes its time
    plain = data.load_split(DataConfig(dataset=str(folder)), "train", None, COLUMNS)
    for buffer_size in (1, 16, 1000):
        whole = stream_of(folder, buffer_size).draw(3 * count)
        epochs = [whole[start : start + count] for start in (0, count, 2 * count)]
        orders = [[row["prompt"] for row in epoch] for epoch in epochs]
        for epoch in epochs:
            assert len({row["id"] for row in epoch}) == count
            without_id = [{**row, "id": 0} for row in sorted(epoch, key=lambda row: row["prompt"])]
            assert without_id == sorted(({**row, "id": 0} for row in plain), key=lambda row: row["prompt"])
        if buffer_size > 1:
            assert len({*map(tuple, orders)}) == 3 and whole != stream_of(folder, buffer_size, seed=1).draw(3 * count)
            meets = [{frozenset(order[at : at + 16]) for at in range(0, count, 16)} for order in orders]
            assert not meets[0] & meets[1]  # rows meet others in the next epoch
        for drawn in (0, 15, 16, 34, 99, 100, 101, 230):
            first, second = stream_of(folder, buffer_size), stream_of(folder, buffer_size)
            first.draw(drawn)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert second.epoch == first.epoch and second.draw(60) == whole[drawn : drawn + 60]


def test_a_part_that_cannot_be_read_any_more_and_a_split_without_rows_are_named(tmp_path):
    stream = stream_of(write(tmp_path, "hub"), 16)
    for file in tmp_path.glob("data/*"):
        file.write_bytes(b"x")
    with pytest.raises(DataError, match=r"split train, part \d, row \d+: .*Arrow"):
        stream.draw(200)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "train.csv").write_text("prompt,completion\n")
    with pytest.raises(DataError, match=r"split train.*\bnone$"):
        stream_of(tmp_path / "empty", 16)


def test_a_stream_holds_no_more_than_its_block(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}" + "x" * 1000, "completion": "a"}) + "\n" for i in range(2000)))
    stream = stream_of(tmp_path, 20)
    tracemalloc.start()
    for _ in range(100):
        stream.draw(20)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stream.state_dict()["begin"]["block"] > 90 and most < 0.1 * path.stat().st_size


def test_rows_of_a_step_that_are_too_long_make_room_for_others_and_are_counted(tmp_path, tokenizer):
    words = ["a", "b", "on", "clear"]
    rows = [{"id": i, "prompt": "on a b", "completion": " ".join(words[: 1 + i % 4])} for i in range(8)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    template, warnings = data.make_chat_template(tokenizer), []

    def step_rows(limit, **changes):
        select = data.select_supervised(tokenizer, DataConfig(**changes), template, limit)
        return data.StepRows(stream_of(tmp_path, 8), 2, select, warnings.append)

    for overlong, cut, left_out in (("cut", 2, 0), ("drop", 0, 2)):
        # A whole epoch: rows of 5, 6, 7 and 8 tokens with their ends, two of each.
        limited = step_rows(data.RowLimit(7, overlong))
        drawn = [row for step in range(4 if overlong == "cut" else 3) for row in limited(step)]
        assert max(row.length for row in drawn) == 7 and len(drawn) == 8 - left_out
        assert f"2 too long: {cut} cut, {left_out} left out" in limited.describe()
        resumed = step_rows(data.RowLimit(7, overlong))
        resumed.load_state_dict(2, json.loads(json.dumps(limited.state_dict(2))))
        assert resumed(2) == limited(2) and resumed.state_dict(3) == limited.state_dict(3)
        with pytest.raises(ValueError, match=r"^step"):
            resumed(4)
    assert len(warnings) == 2
    limited.load_state_dict(7, None)  # from a checkpoint of other rows
    assert "checkpoint" in warnings[2] and limited.describe().startswith("0 rows")
    assert limited(7) == step_rows(data.RowLimit(7, "drop"))(0)
    with pytest.raises(DataError, match=r"max_length.*row"):
        list(map(step_rows(data.RowLimit(7, "error")), range(4)))
    with pytest.raises(DataError, match="max_prompt_length"):
        step_rows(None, max_prompt_length=2)(0)
    with pytest.raises(DataError, match=r"train.*left out"):
        step_rows(None, filter_overlong_prompts=True, max_prompt_length=2)(0)


def test_what_needs_all_rows_is_refused():
    common = {"dataset": "folder", "streaming": True, "total_episodes": 64}
    refused_by_train = {"total_episodes": None, "curriculum": "success", "reference_prefixes": 1, "n_shots": 1}
    refused_by_train |= {"shuffle_buffer_size": 0}
    for name, value in refused_by_train.items():
        with pytest.raises(ConfigError, match=f"^{name}"):
            replace(TrainConfig(), **common | {"algorithm": "grpo", name: value})
    for name, value in {"augment": "order", "tokenizer_path": None}.items():
        with pytest.raises(ConfigError, match=f"^{name}"):
            replace(SFTConfig(), **common | {"tokenizer_path": "folder", name: value})
    with pytest.raises(ConfigError, match=r"^input_max_text_length"):
        replace(TrainConfig(), **common, input_min_text_length=1, input_max_text_length=2)
    for drawn in ("blocksworld", "stream:ferry"):
        with pytest.raises(ConfigError, match=r"^streaming"):
            replace(TrainConfig(), **common | {"dataset": drawn})
    with pytest.raises(ConfigError, match=r"^shuffle_buffer_size"):
        StreamingConfig(shuffle_buffer_size=5)
