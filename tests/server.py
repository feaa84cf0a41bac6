"""A real Dagster: web server and daemon, started as a user starts them and stopped again."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _restore_signals() -> None:
    # A shell that starts a job in the background makes it ignore SIGINT, and Dagster passes that on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def dagster_server(home: Path, *command: str, timeout: float = 120) -> Iterator[str]:
    """Run `command` (such as `dg dev`) from the project's top, its history and storage below `home`.

    Yields the server's address once it answers. Everything that was started is ended afterwards.
    """
    port = _free_port()
    (home / "dagster").mkdir(parents=True)
    (home / "dagster/dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home / "dagster"),
        "RL_ASSETS_STORAGE": str(home / "storage"),
    }
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            [str(BIN / command[0]), *command[1:], "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_restore_signals,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(server, address, timeout, home / "server.log")
        yield address
    finally:
        _stop(server)


def _wait(server: subprocess.Popen[bytes], address: str, timeout: float, log: Path) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/server_info", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-4000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
