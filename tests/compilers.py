"""Whether XLA's compilers for accelerators are installed, which tests of compiled programs need; no chip is."""

import importlib.util

import pytest

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no compiler for TPUs: pip install 'jaxppo[aot-tpu]'"
)
needs_gpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda13") is None,
    reason="no compiler for GPUs: pip install 'jaxppo[aot-gpu]'",
)
