"""The same work on a real Ray cluster of several nodes on loopback: same bytes, whoever dies."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.progress import Log
from rl_assets.workers import AUTO, CLUSTER, spread
from tests.build import TRAIN, VAL, make_dataset, materialize
from tests.project import BIN, make_project, run

ray = pytest.importorskip("ray", reason="pip install 'rl-assets[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes with a core each; the address of their head."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    with pytest.MonkeyPatch.context() as patch:
        # On loopback, and only there, the nodes need not prove to each other who they are.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # A job of the cluster starts `dagster` there.
        patch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
        started = Cluster(initialize_head=True, head_node_args=node)
        try:
            started.add_node(**node)
            patch.setenv(CLUSTER, started.address)
            yield started.address
        finally:
            ray.shutdown()
            started.shutdown()


@contextmanager
def squarer(folder: Path, place: str, log: Log) -> Iterator[Callable[[int], tuple[int, str, int]]]:
    """Work that ends its process at 13, the first time, and refuses 7."""
    log("set up")

    def work(number: int) -> tuple[int, str, int]:
        if number == 13 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7:
            raise InputError(file="numbers", row=7, found="7", expected="an even number", remedy="Drop it.")
        (folder / f"{number}-{os.getpid()}").touch()
        return number**2, place, os.getpid()

    yield work


class Setup:
    """`squarer` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, place: str, log: Log) -> object:
        """The context manager of a worker."""
        return squarer(self.folder, place, log)


def test_tasks_run_at_every_node_and_results_keep_their_order(cluster: str, tmp_path: Path) -> None:
    said: list[str] = []
    results = list(spread(Setup(tmp_path), iter(range(20, 60)), [AUTO], said.append))
    assert [square for square, _, _ in results] == [number**2 for number in range(20, 60)]
    assert {place for _, place, _ in results} == {"cpu"}
    assert len({process for _, _, process in results} - {os.getpid()}) == 2
    assert {line for line in said if "set up" in line} == {"[ray 0] set up", "[ray 1] set up"}


def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_doubled(cluster: str, tmp_path: Path) -> None:
    results = list(spread(Setup(tmp_path), [10, 11, 12, 13, 14, 15, 16], ["cpu"], lambda _: None))
    assert (tmp_path / "died").exists()
    assert [square for square, _, _ in results] == [100, 121, 144, 169, 196, 225, 256]


def test_what_is_wrong_in_a_worker_is_raised_here(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="numbers, row 7: found 7, expected an even number"):
        list(spread(Setup(tmp_path), [8, 7, 9], ["cpu"], lambda _: None))


def test_a_gpu_that_the_cluster_lacks_is_named(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a cluster without a GPU"):
        list(spread(Setup(tmp_path), [1], ["cuda"], lambda _: None))


def test_the_whole_graph_gives_what_one_machine_gives(cluster: str, tmp_path: Path) -> None:
    versions = []
    for place in ("cluster", "here"):
        with pytest.MonkeyPatch.context() as patch:
            if place == "here":
                patch.delenv(CLUSTER)
            dataset = make_dataset(
                tmp_path / place,
                TRAIN,
                VAL,
                checks={"reject_rate": {"max": 0.5}},
                shards={"count": 2},
                rollout={"n": 2},
            )
            result = materialize(dataset)
        assert result.success
        versions.append(
            {
                event.asset_key.path[-1]: event.step_materialization_data.materialization.tags[
                    "dagster/data_version"
                ]
                for event in result.get_asset_materialization_events()
                if event.asset_key
            }
        )
    assert versions[0] == versions[1]


def test_a_step_can_be_a_job_of_the_cluster(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ray.init(cluster, ignore_reinit_error=True)
    monkeypatch.setenv("RAY_ADDRESS", f"http://{context.dashboard_url}")
    monkeypatch.setenv("RL_ASSETS_EXECUTOR", "ray")
    monkeypatch.setenv("RL_ASSETS_STORAGE", str(tmp_path / "storage"))
    folder = make_project(tmp_path / "project")
    launched = run(folder, "dg", "launch", "--assets", "toy/raw_files")
    assert launched.returncode == 0, launched.stdout[-4000:]
    assert "in Ray job dagster-step-" in launched.stdout
    assert (tmp_path / "storage/toy/raw_files.json").is_file()


def test_no_cluster_at_the_address_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray.shutdown()
    monkeypatch.setenv(CLUSTER, "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        list(spread(Setup(tmp_path), [1], ["cpu"], lambda _: None))
