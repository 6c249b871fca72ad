"""Four forced host devices, caches in a folder of the test run, and compiled programs dropped after each module.

With JAXPPO_TEST_PLATFORM=cuda,cpu, or tpu,cpu, tests compute on an accelerator; those of nn and rl are meant for it.
"""

import getpass
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.headless import CHROMIUM, Browser

PLATFORMS = os.environ.get("JAXPPO_TEST_PLATFORM", "cpu")
FEW_OPTIMISATIONS = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
"""Of machine code, not of how programs are split. Most programs run once or twice: tests take half the time."""

os.environ["JAX_PLATFORMS"] = PLATFORMS
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share a GPU
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=4",
        *(FEW_OPTIMISATIONS if PLATFORMS == "cpu" else ()),
        # These take half of the time of a compilation. From jaxlib 0.11 on there is no other way, and an unknown flag
        # ends the process.
        "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else "",
        "--xla_cpu_collective_call_terminate_timeout_seconds=600",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    ]
).strip()
# Torch's threads wait for each other by spinning: several processes of tests would do little else.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("JAXPPO_CACHE", os.path.join(tempfile.gettempdir(), f"jaxppo-tests-{getpass.getuser()}"))


# Tests that run in the background inherit that Ctrl-C is ignored, and so would the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_FILES = """test_runs test_ppo test_train test_models test_resume test_reward_model
test_train_rewards test_docs test_device_modes test_processes test_export test_checkpoints
test_gradient_checkpointing test_update test_rollout test_learned test_lora test_build test_config
test_trl_grpo test_trl_ppo test_trl_rloo""".split()  # noqa: SIM905
"""Longest first: a few processes share the tests file by file, and one would end alone with what is left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files; the rest in the order of the folders."""
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(scope="session", autouse=True)
def _as_in_a_command() -> None:
    """JAX set up as by every command: what one test has compiled the others read from disk, in any process."""
    from jaxppo.run import cli

    cli.main(lambda: None)


@pytest.fixture(scope="module", autouse=True)
def _drop_compiled_programs() -> Iterator[None]:
    """Compiled programs hold memory maps, whose number per process is limited: those of all tests are too many."""
    yield
    import jax

    jax.clear_caches()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium; the tests that ask for it are skipped where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no chromium (Debian package chromium) to open the page with")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[object]:
    """A hub that this process uses."""
    from tests import hub_server

    with hub_server.serving() as hub, hub_server.used(hub, str(tmp_path / "home")):
        yield hub
    assert hub.unknown == []
