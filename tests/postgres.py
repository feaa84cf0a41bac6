"""A real PostgreSQL on loopback, made for a test and gone after it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server import free_port

USER, PASSWORD, DATABASE = "rl_assets", "a-password-of-the-test", "postgres"


def _binary(name: str) -> str | None:
    """Debian keeps the server's programs off the PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def _required(name: str) -> str:
    path = _binary(name)
    assert path, f"{name} is not installed (Debian: apt-get install postgresql)"
    return path


needs_postgres = pytest.mark.skipif(
    _binary("initdb") is None and not os.environ.get("CI"),
    reason="PostgreSQL is not installed (Debian: apt-get install postgresql)",
)


@contextmanager
def postgres_server() -> Iterator[dict[str, str]]:
    """Start a server with one user and his password.

    Yields the environment variables by which `deploy/dagster.yaml` finds it. PostgreSQL refuses to run as
    root, so root's tests run it as another user, in a folder that this user can reach.
    """
    initdb, postgres = _required("initdb"), _required("postgres")
    user = _other_user() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="rl-assets-postgres-"))
    server: subprocess.Popen[bytes] | None = None
    try:
        (folder / "password").write_text(PASSWORD)
        if user:
            shutil.chown(folder, user)
            shutil.chown(folder / "password", user)
        options = [f"--username={USER}", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256"]
        subprocess.run(
            [initdb, "-D", folder / "data", *options, "--encoding=UTF8", "--locale=C", "--no-sync"],
            user=user,
            cwd=folder,
            check=True,
            capture_output=True,
        )
        port = free_port()
        quick = ["-c", "fsync=off", "-c", "unix_socket_directories="]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [postgres, "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), *quick],
                user=user,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _wait(server, port, folder / "log")
        yield {
            "DAGSTER_POSTGRES_HOST": "127.0.0.1",
            "DAGSTER_POSTGRES_PORT": str(port),
            "DAGSTER_POSTGRES_DB": DATABASE,
            "DAGSTER_POSTGRES_USER": USER,
            "DAGSTER_POSTGRES_PASSWORD": PASSWORD,
        }
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # ends the sessions and shuts down
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg2

    end = time.monotonic() + 30
    while time.monotonic() < end and server.poll() is None:
        try:
            psycopg2.connect(
                host="127.0.0.1", port=port, user=USER, password=PASSWORD, dbname=DATABASE
            ).close()
            return
        except psycopg2.OperationalError:
            time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not come up:\n{log.read_text()[-4000:]}")
