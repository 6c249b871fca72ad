"""Write the splits that presets of `train` use, ready made, after a change of their rows.

python runs/shipped_data.py default planning-multi
"""

import json
import sys

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.data import REQUESTS_FILE, SHIPPED_DATA, generated_split
from jaxppo.planning.datasets.folder import write_parquet

for preset in sys.argv[1:]:
    config = parse_cli(TrainConfig, "train", ["--preset", preset]).data
    folder = SHIPPED_DATA / preset
    folder.mkdir(exist_ok=True)
    requests = {}
    for split in ("rl", *config.eval_splits):
        generated = generated_split(config, split)
        assert generated is not None, f"{preset}: expected a data set that is generated"
        write_parquet(generated.generate(), folder / f"{split}.parquet")
        requests[split] = generated.request
    (folder / REQUESTS_FILE).write_text(json.dumps(requests, indent=2) + "\n", encoding="utf-8")
