"""A real Dagster: web server and daemon, started as a user starts them and stopped again."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent


def free_port() -> int:
    """A port of loopback that nobody listens on."""
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
    port = free_port()
    (home / "dagster").mkdir(parents=True)
    (home / "dagster/dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home / "dagster"),
        "RL_ASSETS_STORAGE": str(home / "storage"),
    }
    log = home / "server.log"
    where = ["--host", "127.0.0.1", "--port", str(port)]
    with started([*command, *where], folder=ROOT, environment=environment, log=log) as server:
        address = f"http://127.0.0.1:{port}"
        wait_for_server(server, address, log, timeout)
        yield address


@contextmanager
def started(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the environment in the background; it and what it started are ended afterwards."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_restore_signals,
        )
    try:
        yield process
    finally:
        _stop(process)


def wait_for_server(server: subprocess.Popen[bytes], address: str, log: Path, timeout: float = 120) -> None:
    """Wait until a web server answers; an error shows the end of its log."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/server_info", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    with suppress(ProcessLookupError):  # what it started and left behind
        os.killpg(process.pid, signal.SIGKILL)
