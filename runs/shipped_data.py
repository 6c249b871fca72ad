"""Write the splits that presets of `train` use, ready made, after a change of their rows.

python runs/shipped_data.py default planning-multi
"""

import json
import sys

import pyarrow
import pyarrow.parquet

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.data import REQUESTS_FILE, SHIPPED_DATA, generated_split

for preset in sys.argv[1:]:
    config = parse_cli(TrainConfig, "train", ["--preset", preset]).data
    folder = SHIPPED_DATA / preset
    folder.mkdir(exist_ok=True)
    requests = {}
    for split in ("rl", *config.eval_splits):
        generated = generated_split(config, split)
        assert generated is not None, f"{preset}: expected a data set that is generated"
        table = pyarrow.Table.from_pylist(generated.generate())
        path = folder / f"{split}.parquet"
        pyarrow.parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
        requests[split] = generated.request
    (folder / REQUESTS_FILE).write_text(json.dumps(requests, indent=2) + "\n", encoding="utf-8")
