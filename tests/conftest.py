"""Four forced host devices, and caches in a folder of the test run: set before jax is imported."""

import getpass
import os
import tempfile

os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=4",
        "--xla_cpu_collective_call_terminate_timeout_seconds=600",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    ]
).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
# Many tests compile the same programs: a cache for this run of the tests.
_compiled = tempfile.TemporaryDirectory(prefix="jaxppo-tests-compiled-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _compiled.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("JAXPPO_CACHE", os.path.join(tempfile.gettempdir(), f"jaxppo-tests-{getpass.getuser()}"))
