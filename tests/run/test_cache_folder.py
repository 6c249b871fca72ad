"""Folders of the cache: built by one of several that ask, complete or not at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxppo.run import lock
from jaxppo.run.cache_folder import get_or_build


def write(made: Path) -> None:
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "rows.jsonl").write_text("one\ntwo\n")
    (made / "about").write_text("rows")


@pytest.fixture
def wait_for_one(monkeypatch):
    """A function that returns once another thread has begun to wait for the lock, which is that of its open file."""
    waiting, held = threading.Semaphore(0), lock.held

    def counted(path, busy):
        def waits():
            waiting.release()
            busy()

        return held(path, waits)

    monkeypatch.setattr(lock, "held", counted)

    def wait():
        assert waiting.acquire(timeout=60)

    return wait


def test_of_several_that_ask_one_makes_the_folder_and_another_where_it_fails(tmp_path, wait_for_one):
    makers = []

    def make(made):
        makers.append(made)
        if len(makers) == 1:
            wait_for_one()
            wait_for_one()
            raise RuntimeError("the first one fails")  # and its lock is gone: the others need another one
        write(made)

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(get_or_build, tmp_path / "folder", make) for _ in range(3)]
    failures = [future.exception() for future in futures if future.exception() is not None]
    assert [type(failure) for failure in failures] == [RuntimeError] and len(makers) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    get_or_build(tmp_path / "folder", lambda made: pytest.fail("made again"))


def test_what_fails_leaves_nothing(tmp_path):
    def fail(made: Path) -> None:
        write(made)
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        get_or_build(tmp_path / "folder", fail)
    assert list(tmp_path.iterdir()) == []
