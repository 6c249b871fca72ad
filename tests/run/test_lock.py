"""One holder at a time, and none after its death."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxppo.errors import ConfigError
from jaxppo.run.lock import LOCK_FILE, folder_lock

HOLD = """
import sys
from pathlib import Path
from jaxppo.run.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_has_one_holder_leaves_nothing_and_ends_with_its_process(tmp_path):
    with folder_lock(tmp_path):
        with pytest.raises(ConfigError, match=rf"process {os.getpid()} on \S+ since \d{{4}}-"), folder_lock(tmp_path):
            pytest.fail("held twice")
        assert (tmp_path / LOCK_FILE).exists()
    assert list(tmp_path.iterdir()) == []
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on "), folder_lock(tmp_path):
            pytest.fail("held twice")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / LOCK_FILE).exists()
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_of_many_that_come_and_go_never_two_hold_it(tmp_path):
    inside, most = [], []

    def work(_):
        for _ in range(200):
            try:
                with folder_lock(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except ConfigError:
                continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert set(most) == {1} and len(most) > 8


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_locks_nothing_and_keeps_no_file(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    with folder_lock(tmp_path), folder_lock(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()
    assert list(tmp_path.iterdir()) == []
