"""Write the splits that the default run uses, ready made: python runs/shipped_data.py, after a change of their rows."""

import json

from jaxppo.config import DataConfig
from jaxppo.data import REQUESTS_FILE, SHIPPED_DATA, build_request, built_in_request
from jaxppo.planning.datasets.folder import write_parquet

requests = {split: built_in_request(DataConfig(), split) for split in ("rl", "test", "test_longer")}
SHIPPED_DATA.mkdir(exist_ok=True)
for split, request in requests.items():
    write_parquet(build_request(request), SHIPPED_DATA / f"{split}.parquet")
(SHIPPED_DATA / REQUESTS_FILE).write_text(json.dumps(requests, indent=2) + "\n", encoding="utf-8")
