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

from jaxppo.errors import ModelError
from jaxppo.hf import files as model_files

TENSORS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3) / 7,
    "brain": (np.arange(12).reshape(4, 3) / 7).astype(ml_dtypes.bfloat16),
    "plain": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32),
    "bias": np.arange(4, dtype=np.float32),
}


def assert_same_tensors(tensors, expected):
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        read = tensors[name][...]
        assert (read.dtype, tuple(tensors[name].get_shape())) == (array.dtype, array.shape), name
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


def test_open_tensors_reads_one_file(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)


def write_safetensors(file, about, content):
    """A safetensors file by its format: 8 bytes of length, a header in JSON, the bytes of the tensors."""
    header = json.dumps({name: dict(zip(("dtype", "shape", "data_offsets"), row, strict=True)) for name, row in about})
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + content)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_open_tensors_reads_every_type_and_part(dtype, tmp_path):
    array = (np.arange(4 * 3 * 2) % 2 + np.arange(24) % 5).reshape(4, 3, 2).astype(dtype)
    written = {"a": array, "empty": array[:0], "one": np.array(array[0, 0, 1])}
    save_file(written, tmp_path / "model.safetensors")
    tensors = model_files.open_tensors(tmp_path)
    assert_same_tensors(tensors, written)
    for index in (np.s_[1:3], np.s_[:, 1:], np.s_[2:, :1, 1:], np.s_[:0], np.s_[...], np.s_[1:3, ..., :1]):
        part = tensors["a"][index]
        np.testing.assert_array_equal(part, array[index])
        assert part.flags.owndata and part.flags.writeable  # not a view of the file


def test_open_tensors_reads_tensors_at_odd_places(tmp_path):
    values = np.array([1.5, -2.0], "<f4")
    rows = [("byte", ("U8", [1], [0, 1])), ("odd", ("F32", [2], [1, 9]))]
    write_safetensors(tmp_path / "model.safetensors", rows, b"\x07" + values.tobytes())
    assert_same_tensors(model_files.open_tensors(tmp_path), {"byte": np.array([7], np.uint8), "odd": values})


def test_open_tensors_names_a_type_that_numpy_has_not(tmp_path):
    rows = [("scales", ("F8_E8M0", [2], [0, 2])), ("plain", ("U8", [1], [2, 3]))]
    write_safetensors(tmp_path / "model.safetensors", rows, b"abc")
    tensors = model_files.open_tensors(tmp_path)
    np.testing.assert_array_equal(tensors["plain"][...], [99])
    with pytest.raises(ModelError, match=r"^scales: expected numbers of type F64, .*, got F8_E8M0; convert"):
        model_files.read_weights("scales", tensors["scales"])


def test_open_tensors_still_reads_the_file_that_it_opened(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    tensors = model_files.open_tensors(tmp_path)
    save_file({name: array * 2 for name, array in TENSORS.items()}, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "model.safetensors")
    assert_same_tensors(tensors, TENSORS)


def test_open_tensors_reads_shards(tmp_path):
    names = list(TENSORS)
    weight_map = {}
    for i, chosen in enumerate((names[:1], names[1:])):
        save_file({name: TENSORS[name] for name in chosen}, tmp_path / f"model-{i}.safetensors")
        weight_map |= dict.fromkeys(chosen, f"model-{i}.safetensors")
    write_index(tmp_path, "model.safetensors", weight_map)
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)


def test_open_tensors_reads_parts(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "bin").mkdir()
    save_bin(tmp_path / "bin" / "pytorch_model.bin", TENSORS)
    for folder in (tmp_path, tmp_path / "bin"):
        tensors = model_files.open_tensors(folder)
        for name, index in {"plain": (slice(1, 4), slice(2, 4)), "brain": (slice(3, 4), slice(None))}.items():
            np.testing.assert_array_equal(tensors[name][index], TENSORS[name][index])
            assert tensors[name][index].dtype == TENSORS[name].dtype


def test_open_tensors_prefers_the_named_file_then_safetensors(tmp_path):
    save_bin(tmp_path / "pytorch_model.bin", {"from": np.float32([0])})
    assert_same_tensors(model_files.open_tensors(tmp_path), {"from": np.float32([0])})
    save_file({"from": np.float32([1])}, tmp_path / "model.safetensors")
    assert_same_tensors(model_files.open_tensors(tmp_path), {"from": np.float32([1])})
    save_file({"from": np.float32([2])}, tmp_path / "head.safetensors")
    assert_same_tensors(model_files.open_tensors(tmp_path, "head.safetensors"), {"from": np.float32([2])})
    assert_same_tensors(model_files.open_tensors(tmp_path, "other.safetensors"), {"from": np.float32([1])})


def test_open_tensors_names_what_it_looked_for(tmp_path):
    with pytest.raises(ModelError, match=r"^expected model.safetensors, pytorch_model.bin, or one of them in shards"):
        model_files.open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"model.safetensors.index.json: expected JSON, got: broken JSON .Expecting"),
        ("[]", r"model.safetensors.index.json: expected a JSON object, got list"),
        ("{}", r"model.safetensors.index.json: expected an object 'weight_map', got NoneType"),
        ('{"weight_map": {"a": "gone.safetensors"}}', r"gone.safetensors: expected a readable .*No such file"),
        (
            '{"weight_map": {"a": ["x"]}}',
            r"model.safetensors.index.json, a: expected the name of a file .*, got \['x'\]",
        ),
        (
            '{"weight_map": {"a": ""}}',
            r"model.safetensors.index.json, a: expected the name of a file beside it, got ''",
        ),
        ('{"weight_map": {"a": ".."}}', r"model.safetensors.index.json, a: expected the name of a file .*, got '..'"),
    ],
)
def test_open_tensors_names_the_damaged_index(content, message, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        model_files.open_tensors(tmp_path)


def test_open_tensors_stays_in_the_folder(tmp_path):
    save_file(TENSORS, tmp_path / "outside.safetensors")
    (tmp_path / "model").mkdir()
    write_index(tmp_path / "model", "model.safetensors", dict.fromkeys(TENSORS, "../outside.safetensors"))
    with pytest.raises(ModelError, match=r"half: expected the name of a file beside it, got '../outside.safetensors'"):
        model_files.open_tensors(tmp_path / "model")


@pytest.mark.parametrize("keep", [4, 300])
def test_open_tensors_names_the_truncated_file(keep, tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"^model.safetensors: expected a readable safetensors file, got: "):
        model_files.open_tensors(tmp_path)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_open_tensors_reads_what_torch_saved(zip_format, tmp_path):
    save_bin(tmp_path / "pytorch_model.bin", TENSORS, zip_format)
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)


def test_open_tensors_reads_shards_of_torch(tmp_path):
    names = list(TENSORS)
    weight_map = {}
    for i, chosen in enumerate((names[:3], names[3:])):
        save_bin(tmp_path / f"pytorch_model-{i}.bin", {name: TENSORS[name] for name in chosen})
        weight_map |= dict.fromkeys(chosen, f"pytorch_model-{i}.bin")
    write_index(tmp_path, "pytorch_model.bin", weight_map)
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)


def test_open_tensors_reads_parameters_and_views(tmp_path):
    torch = pytest.importorskip("torch")
    matrix = torch.nn.Parameter(as_torch(TENSORS["plain"]))
    torch.save({"parameter": matrix, "transposed": matrix.detach().T}, tmp_path / "pytorch_model.bin")
    expected = {"parameter": TENSORS["plain"], "transposed": TENSORS["plain"].T}
    assert_same_tensors(model_files.open_tensors(tmp_path), expected)


def test_open_tensors_reads_the_short_types_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([[1.5, -0.25], [0.0, 96.0]])
    types = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16")
    torch.save({name: numbers.to(getattr(torch, name)) for name in types}, tmp_path / "pytorch_model.bin")
    tensors = model_files.open_tensors(tmp_path)
    for name in types:
        np.testing.assert_array_equal(tensors[name][1:].astype(np.float32), numbers.numpy()[1:])
        assert tensors[name][...].dtype.name == name and model_files.is_floating(tensors[name])


def test_open_tensors_says_what_torch_has_no_numbers_of(tmp_path):
    torch = pytest.importorskip("torch")
    odd = {"sparse": torch.eye(3).to_sparse(), "meta": torch.empty(3, device="meta")}
    torch.save(odd, tmp_path / "pytorch_model.bin")
    tensors = model_files.open_tensors(tmp_path)
    assert {name: tensor.get_dtype() for name, tensor in tensors.items()} == {
        "sparse": "float32 (sparse_coo)",
        "meta": "float32 (meta)",
    }
    assert not any(map(model_files.is_floating, tensors.values()))


@pytest.mark.parametrize(
    ("number", "dtype"), [(65520.0, "float16"), (3.4e38, "bfloat16"), (np.float64(1e300), "float32")]
)
def test_cast_names_the_type_that_is_too_narrow(number, dtype):
    array = np.array([1.0, -number], np.result_type(type(number), np.float32))
    with pytest.raises(ModelError, match=f"^w: expected numbers that {dtype} can hold, got larger ones"):
        model_files.cast("w", array, dtype)
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
    with pytest.raises(ModelError, match=r"^pytorch_model.bin: expected tensors and nothing else, got: ") as error:
        model_files.open_tensors(tmp_path)
    assert str(error.value).endswith("Unsupported global: GLOBAL io.open was not an allowed global by default")
    assert not trace.exists()
    torch.load(file, weights_only=False) if form != "plain pickle" else pickle.loads(file.read_bytes())
    assert trace.exists()  # or the attack would be none


@pytest.mark.parametrize("content", [[1, 2], {"step": 3}, {"state_dict": {}}])
def test_open_tensors_asks_for_a_state_dict(content, tmp_path):
    pytest.importorskip("torch").save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"^pytorch_model.bin: expected a dictionary of tensors, got something else"):
        model_files.open_tensors(tmp_path)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk"])
def test_open_tensors_names_the_damaged_bin(content, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=r"^pytorch_model.bin: expected tensors and nothing else, got: \S"):
        model_files.open_tensors(tmp_path)


def test_open_tensors_without_torch_names_the_extra(tmp_path, monkeypatch):
    save_bin(tmp_path / "pytorch_model.bin", TENSORS)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModelError, match=r"^pytorch_model.bin: expected safetensors, .* pip install 'jaxppo\[torch\]'$"
    ):
        model_files.open_tensors(tmp_path)


@pytest.mark.parametrize(("version", "accepted"), [("2.5.1+cu121", False), ("1.13.0", False), ("2.6.0", True)])
def test_open_tensors_refuses_a_torch_that_could_run_code(version, accepted, tmp_path, monkeypatch):
    save_bin(tmp_path / "pytorch_model.bin", TENSORS)
    monkeypatch.setattr("torch.__version__", version)
    if accepted:
        assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)
    else:
        with pytest.raises(ModelError, match=rf"^pytorch_model.bin: expected torch >= 2.6 .*, got {version[:4]}"):
            model_files.open_tensors(tmp_path)


def write_all(folder, max_shard_size):
    asked = []

    def tensor(name):
        asked.append(name)
        return TENSORS[name]

    sizes = {name: array.nbytes for name, array in TENSORS.items()}
    model_files.write_tensors(folder, sizes, tensor, max_shard_size)
    return asked


@pytest.mark.parametrize("max_shard_size", ["5GB", 10**6])
def test_write_tensors_writes_one_file(max_shard_size, tmp_path):
    assert write_all(tmp_path, max_shard_size) == list(TENSORS)
    (file,) = tmp_path.iterdir()
    assert_same_tensors(model_files.open_tensors(tmp_path), TENSORS)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o644
    assert model_files.read_metadata(file) == {"format": "pt"}  # transformers refuses a file without it


def test_write_tensors_splits_at_the_size(tmp_path):
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


def test_read_metadata_names_the_unreadable_file(tmp_path):
    with pytest.raises(ModelError, match=r"^gone.safetensors: expected a readable safetensors file, got: No such file"):
        model_files.read_metadata(tmp_path / "gone.safetensors")


def test_complete_folder_appears_whole(tmp_path):
    with model_files.complete_folder(tmp_path / "a" / "model") as partial:
        (partial / "new").write_text("1")
        assert not (tmp_path / "a" / "model").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    with model_files.complete_folder(tmp_path / "a" / "model") as partial:
        (partial / "newer").write_text("2")
        assert (tmp_path / "a" / "model" / "new").read_text() == "1"
    assert [path.name for path in (tmp_path / "a" / "model").iterdir()] == ["newer"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), ModelError),
        (ValueError("a bug"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_complete_folder_leaves_what_was_there(error, raised, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("1")
    with pytest.raises(raised) as caught, model_files.complete_folder(folder) as partial:
        (partial / "new").write_text("2")
        raise error
    if raised is ModelError:
        expected = f"{folder}: expected to be writable, got: [Errno 28] No space left on device; what was there is as"
        assert str(caught.value).startswith(expected)
    assert [path.name for path in folder.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [folder]


def test_complete_folder_brings_back_what_a_killed_process_moved(tmp_path):
    (tmp_path / ".model.replaced").mkdir()
    (tmp_path / ".model.replaced" / "old").write_text("1")
    with pytest.raises(ValueError, match="stop"), model_files.complete_folder(tmp_path / "model"):
        raise ValueError("stop")
    assert (tmp_path / "model" / "old").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_complete_folder_follows_links_and_relative_paths(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for content in ("1", "2"):
        with model_files.complete_folder(tmp_path / "link") as partial:
            (partial / "file").write_text(content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "file").read_text() == content
    monkeypatch.chdir(tmp_path / "real")
    with model_files.complete_folder(Path(".")) as partial:
        (partial / "file").write_text("3")
    assert (tmp_path / "real" / "file").read_text() == "3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_complete_folder_names_the_place_it_cannot_make(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(ModelError, match=rf"^{tmp_path}/file/model: expected to be writable, got: .*Not a directory"),
        model_files.complete_folder(tmp_path / "file" / "model"),
    ):
        pytest.fail("the body ran")
    assert (tmp_path / "file").read_text() == "mine"


def test_naming_puts_the_file_in_front_once(tmp_path):
    for message in ("r: expected 1", f"{tmp_path}: r: expected 1"):
        with pytest.raises(ModelError) as caught, model_files.naming(tmp_path):
            raise ModelError(message)
        assert str(caught.value) == f"{tmp_path}: r: expected 1"


def test_write_json_is_read_back(tmp_path):
    content = {"b": [1, 2.5, None], "a": {"ä": True}}
    model_files.write_json(tmp_path / "file.json", content)
    assert model_files.read_json(tmp_path / "file.json") == content
    assert (tmp_path / "file.json").read_text().startswith('{\n  "a": {')


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a file of a Hugging Face model, got no file"),
        (b"{", "expected JSON, got: broken JSON .Expecting property name"),
        (b"\xff\xfe", "expected JSON, got: 'utf-8' codec"),
        (b'"text"', "expected a JSON object, got str"),
    ],
)
def test_read_json_names_the_file(content, message, tmp_path):
    if content is not None:
        (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"^{tmp_path}/file.json: {message}"):
        model_files.read_json(tmp_path / "file.json")
