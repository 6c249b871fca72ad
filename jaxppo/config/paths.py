"""The folder of all caches."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The private folder of all caches: $JAXPPO_CACHE, or the user's cache folder."""
    return Path(os.environ.get("JAXPPO_CACHE") or platformdirs.user_cache_dir("jaxppo"))
