"""One holder per device: a second process waits, and a killed holder frees it."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import torch

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


def test_a_cpu_is_not_locked() -> None:
    with device_lock(torch.device("cpu")), device_lock(torch.device("cpu")):
        pass


def test_memory_is_counted_in_bytes() -> None:
    cpu = torch.device("cpu")
    assert 2**26 < free_memory(cpu) < 2**50
    assert 2**26 < peak_memory(cpu) < 2**50
