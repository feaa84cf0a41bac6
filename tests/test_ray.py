"""The same work on a real Ray cluster of several nodes on loopback: same bytes, whoever dies."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.base.progress import Log
from rl_assets.base.workers.pool import AUTO, CLUSTER
from rl_assets.base.workers.spread import spread
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from tests.build import materialize, versions
from tests.project import BIN, make_project, run

ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")


NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
ON_THE_CLUSTER = ("length_filtered", "proto_shards", "rollouts", "reward_scores")


@pytest.fixture(scope="module")
def nodes(toy_run: tuple[GraphDataset, dg.ExecuteInProcessResult]) -> Iterator[Any]:
    """A cluster of two nodes with a core each, named in the environment after `toy_run` was made."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # On loopback, and only there, the nodes need not prove to each other who they are.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # A job of the cluster starts `dagster` there.
        patch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
        started = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            started.add_node(**NODE)
            patch.setenv(CLUSTER, started.address)
            yield started
        finally:
            ray.shutdown()
            started.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> str:
    """The address of the cluster's head."""
    return nodes.address


@contextmanager
def squarer(folder: Path, place: str, log: Log) -> Iterator[Callable[[int], tuple[int, str, int]]]:
    """Work that ends its process at 13, the first time, and refuses 7."""
    log("set up")

    def work(number: int) -> tuple[int, str, int]:
        if number == 13 and not (folder / "died").exists():
            (folder / "died").touch()
            time.sleep(1)  # until Ray has let go of what nobody holds
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7:
            raise InputError(file="numbers", row=7, found="7", expected="an even number", remedy="Drop it.")
        (folder / f"{number}-{os.getpid()}").touch()
        return number**2, place, os.getpid()

    yield work


class Setup:
    """`squarer` in a folder; it may weigh as much as a tokenizer."""

    def __init__(self, folder: Path, weight: int = 0) -> None:
        self.folder, self.weight = folder, bytes(weight)

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


def test_a_worker_is_replaced_also_where_its_setup_is_large(cluster: str, tmp_path: Path) -> None:
    results = list(spread(Setup(tmp_path, 8 << 20), [13], ["cpu"], lambda _: None))
    assert (tmp_path / "died").exists()
    assert [square for square, _, _ in results] == [169]


def test_what_is_wrong_in_a_worker_is_raised_here(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="numbers, row 7: found 7, expected an even number"):
        list(spread(Setup(tmp_path), [8, 7, 9], ["cpu"], lambda _: None))


def test_a_gpu_that_the_cluster_lacks_is_named(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a cluster without a GPU"):
        list(spread(Setup(tmp_path), [1], ["cuda"], lambda _: None))


def workers() -> dict[int, bool]:
    """Whether each worker process of this test's cluster is at work, by its id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it may have ended
            title = (folder / "cmdline").read_bytes().rstrip(b"\0")
            if title.startswith(b"ray::_Actor") and _parent(_parent(int(folder.name))) == os.getpid():
                found[int(folder.name)] = title == b"ray::_Actor.do"
    return found


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def workers_are_killed(steps: Collection[str]) -> Iterator[list[str]]:
    """Of each of the steps (in `ON_THE_CLUSTER`), the first worker that is seen at work is killed; gives the
    steps whose workers were seen."""
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        known: set[int] = set()
        while not over.wait(0.01):
            now = workers()
            busy = [process for process, works in now.items() if works]
            # The other workers of a step, and the one that takes the place of the killed, are left alone.
            if busy and not known & now.keys():
                seen.append(ON_THE_CLUSTER[len(seen)])
                if seen[-1] in steps:
                    os.kill(busy[0], signal.SIGKILL)
            if busy:
                known |= now.keys()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_the_whole_graph_gives_what_one_machine_gives_whichever_workers_die(
    toy_run: tuple[GraphDataset, dg.ExecuteInProcessResult],
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local, here = toy_run
    shutil.copytree(local.root / "data/toy", tmp_path / "data/toy")
    # The first batches are rendered where the step runs, at most four of five; the others go to the cluster.
    monkeypatch.setattr("rl_assets.prompts.length._BATCH_ROWS", 2)
    with dg.instance_for_test() as instance:
        with workers_are_killed({"length_filtered", "rollouts"}) as seen:
            there = materialize(GraphDataset(local.spec, tmp_path), instance=instance)
        said = {
            str(event.step_key).removeprefix("toy__"): event.user_message
            for event in instance.all_logs(there.run_id)
            if event.user_message.startswith("ray: ")
        }
    assert there.success
    assert said == dict.fromkeys(ON_THE_CLUSTER, f"ray: 2 workers at {cluster}")
    assert tuple(seen) == ON_THE_CLUSTER
    assert versions(there) == versions(here)


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


@contextmanager
def looking(place: str, log: Log) -> Iterator[Callable[[int], tuple[str, str | None]]]:
    """Work that says where it is done, and which GPUs it sees."""
    yield lambda _: (place, os.environ.get("CUDA_VISIBLE_DEVICES"))


def test_workers_ask_for_a_gpu_each_where_the_cluster_has_some(nodes: Any) -> None:
    node = nodes.add_node(**NODE, num_gpus=1)
    try:
        assert set(spread(looking, range(4), [AUTO], lambda _: None)) == {("cuda:0", "0")}
    finally:
        nodes.remove_node(node)


def test_no_cluster_at_the_address_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray.shutdown()
    monkeypatch.setenv(CLUSTER, "127.0.0.1:1")
    with pytest.raises(InputError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        list(spread(Setup(tmp_path), [1], ["cpu"], lambda _: None))
