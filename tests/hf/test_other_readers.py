"""Exports and the shipped models, read by transformers 4.57.1 and by that of today: all compute what jaxppo does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from jaxppo.hf.card import TRIED_WITH
from tests.hf import other_reader
from tests.hf.families import SMALL
from tests.hf.other_reader import ROWS
from tests.torch_models import random_params, torch_model, transformers, word_tokenizer

pytestmark = pytest.mark.full

OLDER = TRIED_WITH[0]
OLDER_PACKAGES = (f"transformers=={OLDER}", "huggingface-hub>=0.34,<1", "tokenizers>=0.22,<0.23")
READER = Path(__file__).with_name("other_reader.py")
SHIPPED = sorted(path.name for path in hf.ASSETS.iterdir())

# Model, head, and how the export began: here; in a folder of transformers 5, with `rope_parameters` alone, where there
# are older keys; here, but written in bfloat16.
EXPORTS = [
    *(f"{name}/lm/fresh" for name in SMALL),
    *(f"{name}/lm/again" for name, small in SMALL.items() if small.older),
    *(f"{name}/lm/bfloat16" for name in ("gpt_neox", "gpt2", "qwen3")),
    *(f"{name}/score/fresh" for name in ("gpt_neox-sequential", "gpt2-untied", "llama-linear-tied", "smollm3")),
]


def install_older(folder: Path) -> None:
    """Install the older packages alone into a folder; what else they need is in this environment already."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    options = ["--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check", "--target", str(partial)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *OLDER_PACKAGES],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        pytest.skip(f"transformers {OLDER} could not be installed beside the other: pip: {last}")
    if not folder.is_dir():  # nor was it put there meanwhile
        partial.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)


@pytest.fixture(scope="session")
def older_packages() -> Path:
    """The folder of transformers 4.57.1 and of what it needs in other versions than those of this environment."""
    folder = Path(os.environ["JAXPPO_CACHE"]) / f"transformers-{OLDER}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        install_older(folder)
    return folder


def export(folder: Path, name: str, head: str, origin: str) -> None:
    config = SMALL[name].config
    if origin == "again":
        torch_model(SMALL[name].raw, head).save_pretrained(folder.with_name("theirs"))
        config, params = hf.load_pretrained(folder.with_name("theirs"))
    else:
        params = random_params(config, head, scale=0.3)
    special = {"pad_token": "<pad>", "eos_token": "</s>", "additional_special_tokens": ["w60"]}
    dtype = "bfloat16" if origin == "bfloat16" else "float32"
    hf.save_pretrained(folder, config, params, word_tokenizer(size=61, **special), dtype=dtype)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root, found = tmp_path_factory.mktemp("exports"), {name: hf.ASSETS / name for name in SHIPPED}
    for case in EXPORTS:
        found[case] = root / case.replace("/", "-") / "policy"
        found[case].parent.mkdir()
        export(found[case], *case.split("/"))
    return found


@pytest.fixture(scope="module")
def readings(folders, older_packages, tmp_path_factory) -> dict[str, dict]:
    """Version -> what it read: the newer one in this process, beside it the older one in another."""
    out = tmp_path_factory.mktemp("readings") / "older.json"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(older_packages)}
    command = [sys.executable, str(READER), str(out), *map(str, folders.values())]
    older = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    newer = {str(folder): other_reader.read(folder) for folder in folders.values()}
    printed, _ = older.communicate(timeout=300)
    assert older.returncode == 0, printed
    return {"newer": {"version": transformers.__version__, "folders": newer}, "older": json.loads(out.read_text())}


def computed(folder: Path) -> np.ndarray:
    """Return what jaxppo computes: logits [B, T, V] of a language model, scores [B, 1] of a classifier."""
    loaded, head = hf.load_model(folder), hf.read_config(folder)[1]
    ids = jnp.asarray(ROWS) % loaded.config.vocab_size
    output = models.apply(loaded.config, loaded.params, ids, logits=head == "lm")
    return np.asarray(output.logits if head == "lm" else models.scores(loaded.params, output.hidden)[:, -1:])


@pytest.mark.parametrize("case", [*SHIPPED, *EXPORTS])
def test_other_readers_compute_what_jaxppo_computes(case, folders, readings):
    ours = computed(folders[case])
    assert np.abs(ours).max() > 0.5  # or the tolerance would be below what float32 can show
    for reader in readings.values():
        found = reader["folders"][str(folders[case])]
        assert found["problems"] == []
        assert found["dtype"] == ("torch.bfloat16" if case.endswith("bfloat16") else "torch.float32")
        theirs = np.asarray(found["outputs"])
        assert np.abs(theirs - ours).max() <= 1e-5 * np.abs(ours).max(), reader["version"]


# transformers 5 reads any tokenizer of a qwen2 folder as Qwen2's own, whatever the folder says.
WITH_TOKENS = [case for case in (*SHIPPED, *EXPORTS) if not case.startswith("qwen2/")]


@pytest.mark.parametrize("case", WITH_TOKENS)
def test_other_readers_find_the_same_tokens(case, folders, readings):
    newer, older = (readings[reader]["folders"][str(folders[case])]["tokens"] for reader in ("newer", "older"))
    assert newer == older
    special = ["<pad>", "</s>"] if case in EXPORTS else ["<pad>", "<eos>"]
    words = json.loads((folders[case] / "tokenizer.json").read_text())["model"]["vocab"]
    assert newer[2:] == [words[token] for token in special]
    assert newer[0] or case in SHIPPED
    assert "w60" in newer[1] or case in SHIPPED
