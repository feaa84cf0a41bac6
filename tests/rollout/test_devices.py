"""One holder per device: a second process waits, and a killed holder frees it."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest
import torch

from rl_assets.errors import InputError
from rl_assets.rollout.devices import device_lock, file_lock, free_memory, peak_memory

HOLDER = """
import sys, time
from rl_assets.rollout.devices import file_lock
with file_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_waits_until_the_holder_is_killed() -> None:
    name = f"test-{uuid.uuid4().hex}"
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, name],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    said: list[str] = []
    entered = threading.Event()

    def enter() -> None:
        with file_lock(name, said.append):
            entered.set()

    waiter = threading.Thread(target=enter, daemon=True)
    waiter.start()
    assert not entered.wait(0.3)
    assert said == [f"waiting for device {name}: process {holder.pid} holds it"]
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert entered.wait(10)
    waiter.join()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_locks_of_a_user_are_in_a_folder_of_its_own(temporary: Path) -> None:
    with file_lock("device"):
        pass
    (folder,) = temporary.iterdir()
    assert folder.name == f"rl-assets-locks-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("link", [True, False])
def test_a_folder_that_another_user_prepared_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    target = temporary / f"rl-assets-locks-{os.getuid()}"
    if link:
        (temporary / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    else:
        target.mkdir()
        mine = os.getuid()
        monkeypatch.setattr(
            Path, "lstat", lambda path: os.stat_result((0o40700, 0, 0, 1, mine + 1, *[0] * 5))
        )
    with pytest.raises(InputError, match="another user's folder"), file_lock("device"):
        pass


def test_a_lock_that_is_a_link_is_not_followed(temporary: Path) -> None:
    with file_lock("device"):
        pass
    (temporary / "kept").write_text("as it was")
    lock = temporary / f"rl-assets-locks-{os.getuid()}/device.lock"
    lock.unlink()
    lock.symlink_to(temporary / "kept")
    with pytest.raises(OSError), file_lock("device"):
        pass
    assert (temporary / "kept").read_text() == "as it was"


def test_a_cpu_is_not_locked() -> None:
    with device_lock(torch.device("cpu")), device_lock(torch.device("cpu")):
        pass


def test_memory_is_counted_in_bytes() -> None:
    cpu = torch.device("cpu")
    assert 2**26 < free_memory(cpu) < 2**50
    assert 2**26 < peak_memory(cpu) < 2**50
