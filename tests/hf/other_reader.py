"""Reads model folders with whatever transformers is on the path, and writes what it computed.

`python other_reader.py OUT FOLDER...`: OUT becomes a JSON object with its version and, for each folder, the outputs of
its model in float32 on the ids below (modulo its vocabulary), its dtype, what did not fit, and what its tokenizer makes
of some of its words. No part of jaxppo is imported.
"""

import json
import sys
from pathlib import Path

ROWS = [
    [5, 9, 14, 20, 27, 3, 11, 8, 6, 30, 2, 17],
    [31, 4, 4, 12, 29, 7, 10, 0, 22, 13, 2, 2],
    [8, 60, 41, 12, 50, 33, 9, 9, 44, 21, 3, 5],
    [7, 18, 26, 35, 42, 55, 19, 23, 28, 36, 47, 59],
]


def read(folder):
    """Return what a reader of this folder gets: plain values."""
    import torch
    import transformers

    raw = json.loads((folder / "config.json").read_text())
    head = "SequenceClassification" if "Sequence" in raw["architectures"][0] else "CausalLM"
    load = getattr(transformers, f"AutoModelFor{head}").from_pretrained
    # Only in this one transformers 4 heeds the setting.
    attention = {"attn_implementation": "eager"} if raw.get("scale_attn_by_inverse_layer_idx") else {}
    model, info = load(folder, dtype="auto", output_loading_info=True, **attention)
    found = {"dtype": str(model.dtype), "problems": sorted(str(name) for names in info.values() for name in names)}
    with torch.no_grad():
        found["outputs"] = model.float().eval()(torch.tensor(ROWS) % raw["vocab_size"]).logits.tolist()
    if (folder / "tokenizer.json").is_file():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        text = " ".join(sorted(filter(str.isalnum, tokenizer.get_vocab()))[:5])
        special = sorted(map(str, tokenizer.all_special_tokens))
        found["tokens"] = [tokenizer(text).input_ids, special, tokenizer.pad_token_id, tokenizer.eos_token_id]
    return found


if __name__ == "__main__":
    import transformers

    results = {folder: read(Path(folder)) for folder in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps({"version": transformers.__version__, "folders": results}))
