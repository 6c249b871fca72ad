"""The shipped model cut to its first layer, for tests of runs: compiled in a third of the time, and of no skill."""

import atexit
import json
import shutil
import tempfile
from pathlib import Path

from safetensors.numpy import load_file, save_file

from jaxppo import hf


def write(folder: Path) -> None:
    """Write it in the layout of Hugging Face."""
    shutil.copytree(hf.ASSETS / "blocksworld-sft", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = load_file(folder / "model.safetensors")
    first = {name: array for name, array in weights.items() if ".layers." not in name or ".layers.0." in name}
    save_file(first, folder / "model.safetensors", metadata={"format": "pt"})


def _made() -> str:
    folder = Path(tempfile.mkdtemp(prefix="jaxppo-one-layer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write(folder / "policy")
    return str(folder / "policy")


ONE_LAYER = _made()
"""Its folder, as `--sft_model_path` takes it."""
