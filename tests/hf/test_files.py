"""Weights, JSON and folders on disk: files that torch and safetensors wrote, damaged ones, and saves that fail."""

import collections
import json
import os
import pickle
import stat
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxppo import hf
from jaxppo.errors import ModelError
from jaxppo.hf import files as model_files
from tests.torch_models import refused

TENSORS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3) / 7,
    "brain": (np.arange(12).reshape(4, 3) / 7).astype(ml_dtypes.bfloat16),
    "plain": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32),
    "bias": np.arange(4, dtype=np.float32),
}


def assert_same_tensors(tensors, expected):
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        read = tensors[name].read(...)
        assert (read.dtype, tensors[name].shape) == (array.dtype, array.shape), name
        assert read.tobytes() == array.tobytes(), name


def write_index(folder, file, weight_map):
    (folder / f"{file}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def as_torch(array):
    torch = pytest.importorskip("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)


def save_bin(file, tensors, zip_format=True):
    torch = pytest.importorskip("torch")
    state = collections.OrderedDict((name, as_torch(array)) for name, array in tensors.items())
    torch.save(state, file, _use_new_zipfile_serialization=zip_format)


def split(folder, save, pattern):
    """Write `TENSORS` in two shards with their index."""
    names = list(TENSORS)
    weight_map = {}
    for i, chosen in enumerate((names[:1], names[1:])):
        save(folder / pattern.replace(".", f"-{i}."), {name: TENSORS[name] for name in chosen})
        weight_map |= dict.fromkeys(chosen, pattern.replace(".", f"-{i}."))
    write_index(folder, pattern, weight_map)


def save_safetensors(file, tensors):
    save_file(tensors, file)


def save_legacy_bin(file, tensors):
    save_bin(file, tensors, zip_format=False)


@pytest.mark.parametrize(
    ("name", "save"),
    [("model.safetensors", save_safetensors), ("pytorch_model.bin", save_bin), ("pytorch_model.bin", save_legacy_bin)],
)
def test_open_tensors_reads_one_file_shards_and_parts(name, save, tmp_path):
    (tmp_path / "shards").mkdir()
    save(tmp_path / name, TENSORS)
    split(tmp_path / "shards", save, name)
    for folder in (tmp_path, tmp_path / "shards"):
        tensors = model_files.open_tensors(folder)
        assert_same_tensors(tensors, TENSORS)
        for part, index in {"plain": (slice(1, 4), slice(2, 4)), "brain": (slice(3, 4), slice(None))}.items():
            np.testing.assert_array_equal(tensors[part].read(index), TENSORS[part][index])
            assert tensors[part].read(index).dtype == TENSORS[part].dtype


def test_parts_are_copies_and_types_that_no_weights_have_are_named(tmp_path):
    array = np.arange(24, dtype="f8").reshape(4, 3, 2)
    save_file({"a": array, "ids": array.astype("i4")}, tmp_path / "model.safetensors")
    tensors = model_files.open_tensors(tmp_path)
    for index in (np.s_[1:3], np.s_[:, 1:], np.s_[2:, :1, 1:], np.s_[...]):
        part = tensors["a"].read(index)
        np.testing.assert_array_equal(part, array[index])
        assert part.flags.writeable  # not a view of the file
    refused("^ids: .*I32", model_files.read_weights, "ids", tensors["ids"])


def test_open_tensors_prefers_the_named_file_then_safetensors(tmp_path):
    refused("model.safetensors, pytorch_model.bin", model_files.open_tensors, tmp_path)
    first, second, third = ({"from": np.float32([i])} for i in range(3))
    save_bin(tmp_path / "pytorch_model.bin", first)
    assert_same_tensors(model_files.open_tensors(tmp_path), first)
    save_file(second, tmp_path / "model.safetensors")
    assert_same_tensors(model_files.open_tensors(tmp_path), second)
    save_file(third, tmp_path / "head.safetensors")
    assert_same_tensors(model_files.open_tensors(tmp_path, "head.safetensors"), third)
    assert_same_tensors(model_files.open_tensors(tmp_path, "other.safetensors"), second)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", ""),
        ("{}", ": .*weight_map"),
        ('{"weight_map": {"a": ["x"]}}', ", a: "),
        ('{"weight_map": {"a": "../outside.safetensors"}}', ", a: "),
    ],
)
def test_open_tensors_names_the_damaged_index_and_stays_in_the_folder(content, named, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(TENSORS, tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    refused(f"model.safetensors.index.json{named}", model_files.open_tensors, folder)


def test_a_run_folder_in_place_of_its_model_is_told_apart(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    refused(r"config\.json: .*policy\?$", model_files.read_json, tmp_path / "config.json")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_in_the_place_of_weights_is_named(name, tmp_path):
    if name.endswith(".bin"):
        pytest.importorskip("torch")
    (tmp_path / name).write_text(POINTER)
    refused(f"^{name}: .*git-lfs.*git lfs pull", model_files.open_tensors, tmp_path)
    (tmp_path / "config.json").write_text(POINTER)
    refused("config.json: .*git lfs pull", model_files.read_json, tmp_path / "config.json")
    (tmp_path / "tokenizer.json").write_text(POINTER)
    refused(r"tokenizer\.json is .*git lfs pull", hf.load_tokenizer, tmp_path)


def test_an_adapter_and_a_whole_model_are_told_apart(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(r"PEFT adapter: .*--lora_path.*--reward_model_path", model_files.read_json, tmp_path / "config.json")
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    refused("whole model", model_files.read_json, tmp_path / "adapter_config.json")


def test_open_tensors_names_the_file_that_is_missing_or_truncated(tmp_path):
    write_index(tmp_path, "model.safetensors", {"a": "gone.safetensors"})
    refused("^gone.safetensors: ", model_files.open_tensors, tmp_path)
    file = tmp_path / "model.safetensors"
    for keep in (4, 300):
        save_file(TENSORS, file)
        file.write_bytes(file.read_bytes()[:keep])
        refused(f"^{file.name}: ", model_files.open_tensors, tmp_path)


def test_open_tensors_reads_what_torch_has_numbers_of(tmp_path):
    torch = pytest.importorskip("torch")
    matrix = torch.nn.Parameter(as_torch(TENSORS["plain"]))
    state = {"parameter": matrix, "view": matrix.detach().T, "ids": torch.arange(3)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    tensors = model_files.open_tensors(tmp_path)
    refused("^ids: .*int64", model_files.read_weights, "ids", tensors.pop("ids"))
    assert_same_tensors(tensors, {"parameter": TENSORS["plain"], "view": TENSORS["plain"].T})


@pytest.mark.parametrize(
    ("number", "dtype"), [(65520.0, "float16"), (3.4e38, "bfloat16"), (np.float64(1e300), "float32")]
)
def test_cast_names_the_type_that_is_too_narrow(number, dtype):
    array = np.array([1.0, -number], np.result_type(type(number), np.float32))
    refused(f"^w: .*{dtype}", model_files.cast, "w", array, dtype)
    np.testing.assert_array_equal(model_files.cast("w", array[:1], dtype).astype(np.float32), [1.0])


class Attack:
    """An object whose pickle creates a file when an ordinary loader reads it."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_open_tensors_runs_no_code(form, tmp_path):
    torch = pytest.importorskip("torch")
    trace, file = tmp_path / "trace", tmp_path / "pytorch_model.bin"
    content = {"weight": torch.zeros(2), "attack": Attack(trace)}
    if form == "plain pickle":
        file.write_bytes(pickle.dumps({"attack": Attack(trace)}, protocol=2))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    refused("^pytorch_model.bin: .*UnpicklingError", model_files.open_tensors, tmp_path)
    assert not trace.exists()
    torch.load(file, weights_only=False) if form != "plain pickle" else pickle.loads(file.read_bytes())
    assert trace.exists()  # or the attack would be none


def test_open_tensors_asks_for_a_state_dict(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "pytorch_model.bin"
    for content in ([1, 2], {"step": 3}, {"state_dict": {}}):
        torch.save(content, file)
        refused("^pytorch_model.bin: ", model_files.open_tensors, tmp_path)
    for damaged in (b"", b"junk", b"PK\x03\x04junk"):
        file.write_bytes(damaged)
        refused("^pytorch_model.bin: ", model_files.open_tensors, tmp_path)


def test_open_tensors_needs_a_torch_that_runs_no_code(tmp_path, monkeypatch):
    save_bin(tmp_path / "pytorch_model.bin", TENSORS)
    monkeypatch.setattr("torch.__version__", "2.6.0")
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)
    for version in ("2.5.1+cu121", "1.13.0"):
        monkeypatch.setattr("torch.__version__", version)
        refused(rf"^pytorch_model.bin: .*2\.6.*{version[:4]}", model_files.open_tensors, tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(r"^pytorch_model.bin: .*pip install 'jaxppo\[torch\]'$", model_files.open_tensors, tmp_path)


def write_all(folder, max_shard_size):
    asked = []

    def tensor(name):
        asked.append(name)
        return TENSORS[name]

    sizes = {name: array.nbytes for name, array in TENSORS.items()}
    model_files.write_tensors(folder, sizes, tensor, max_shard_size)
    return asked


def test_write_tensors_writes_one_file_or_splits_at_the_size(tmp_path):
    (tmp_path / "one").mkdir()
    assert write_all(tmp_path / "one", "5GB") == list(TENSORS)
    (file,) = (tmp_path / "one").iterdir()
    assert_same_tensors(model_files.open_tensors(tmp_path / "one"), TENSORS)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o644
    assert model_files.read_metadata(file) == {"format": "pt"}  # transformers refuses a file without it
    write_all(tmp_path, 40)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in TENSORS.values())
    for file in files:
        with safe_open(tmp_path / file, framework="numpy") as shard:
            names = set(shard.keys())
        assert names == {name for name, where in index["weight_map"].items() if where == file}
        assert sum(TENSORS[name].nbytes for name in names) <= 40 or len(names) == 1
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)


def test_write_file_stores_transposed_arrays_and_what_it_says(tmp_path):
    file = tmp_path / "a.safetensors"
    model_files.write_file(file, {"t": TENSORS["plain"].T}, made_by="test")
    np.testing.assert_array_equal(load_file(file)["t"], TENSORS["plain"].T)
    assert model_files.read_metadata(file) == {"format": "pt", "made_by": "test"}
    refused("^gone.safetensors: ", model_files.read_metadata, tmp_path / "gone.safetensors")


def texts_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_complete_folder_appears_whole(tmp_path):
    folder = tmp_path / "a" / "model"
    with model_files.complete_folder(folder) as partial:
        (partial / "new").write_text("1")
        assert not folder.exists()
    assert texts_in(tmp_path) == {"a/model/new": "1"}
    leftover = folder.parent / ".model.partial"  # of a process that was killed
    leftover.mkdir()
    (leftover / "half").write_text("")
    with model_files.complete_folder(folder) as partial:
        (partial / "newer").write_text("2")
        assert texts_in(folder) == {"new": "1"}
    assert texts_in(tmp_path) == {"a/model/newer": "2"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), ModelError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        ("rename", ModelError),
    ],
)
@pytest.mark.parametrize("place", ["model", ".model.replaced"], ids=["in its place", "moved by a killed process"])
def test_complete_folder_leaves_the_earlier_one(error, raised, place, tmp_path, monkeypatch):
    folder, rename = tmp_path / "model", Path.rename
    (tmp_path / place).mkdir()
    (tmp_path / place / "old").write_text("1")

    def broken_rename(path, target):
        if error == "rename" and path.name.endswith(".partial"):
            raise OSError("no such luck")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken_rename)
    with pytest.raises(raised) as caught, model_files.complete_folder(folder) as partial:
        (partial / "new").write_text("2")
        if error != "rename":
            raise error
    if raised is ModelError:
        reason = "no such luck" if error == "rename" else "No space left on device"
        assert str(caught.value).startswith(f"{folder}: ") and reason in str(caught.value)
    assert texts_in(tmp_path) == {"model/old": "1"}
    assert list(tmp_path.iterdir()) == [folder]


def test_complete_folder_follows_links_and_relative_paths(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "real")
    for place, content in ((tmp_path / "link", "1"), (tmp_path / "link", "2"), (Path("."), "3")):
        with model_files.complete_folder(place) as partial:
            (partial / "file").write_text(content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "file").read_text() == content
        monkeypatch.chdir(tmp_path / "real")  # it is another one now
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    place = tmp_path / "real" / "file" / "model"  # cannot be made
    with pytest.raises(ModelError, match=f"^{place}: "), model_files.complete_folder(place):
        pytest.fail("the body ran")
    assert (tmp_path / "real" / "file").read_text() == "3"


def test_read_json_reads_what_write_json_wrote_and_errors_name_the_file_once(tmp_path):
    file, content = tmp_path / "file.json", {"b": [1, 2.5, None], "a": {"ä": True}}
    model_files.write_json(file, content)
    assert model_files.read_json(file) == content
    assert file.read_text().startswith('{\n  "a": {')
    for damaged in (b"{", b"\xff\xfe", b'"text"'):
        file.write_bytes(damaged)
        refused(f"^{file}: ", model_files.read_json, file)
    refused(f"^{file}x: ", model_files.read_json, tmp_path / "file.jsonx")
    for message in ("r: expected 1", f"{tmp_path}: r: expected 1"):
        with pytest.raises(ModelError) as caught, model_files.naming(tmp_path):
            raise ModelError(message)
        assert str(caught.value) == f"{tmp_path}: r: expected 1"
