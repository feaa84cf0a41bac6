"""What a rebuild costs when nothing has changed, and when one row has.

The whole graph of a dataset is built with its checks on the demo policy, then built again without a change,
then with one raw row changed. All rows pass the contract and the length gate, and one prompt in a thousand
is rolled out, as those of the sample dataset gsm_symbolic are: twice, with up to 96 tokens. Every build is a
process of its own, as a run of the schedule is; what is timed is the run, from its first step to its last
check, with the run history in SQLite.

    python -m benchmarks.rebuild [--rows 100000]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contract import rows
from tests.build import POLICY, definitions
from tests.verl_wheel import ROOT

BUILDS = ("first", "no change", "one row")
_CHUNK = 10_000
_ONE_IN = 1000


def write(count: int, path: Path, *, changed: bool = False) -> None:
    """`count` rows as a parquet file; with `changed`, one of them asks something else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.Table.from_pylist(list(rows(1))).schema
    source = _with_a_change(rows(count)) if changed else rows(count)
    with pq.ParquetWriter(path, schema) as writer:
        while chunk := list(islice(source, _CHUNK)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))


def _with_a_change(source: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with another prompt in the first that has no copy: copies are told apart by their order."""
    for index, row in enumerate(source):
        if f"({index})" in row["prompt"][0]["content"]:
            yield {**row, "prompt": [{"role": "user", "content": "What is 1 + 1?"}]}
            break
        yield row
    yield from source


def build(folder: Path, rolled_out: int) -> dict[str, float]:
    """Run the graph of the project in `folder` in this process: seconds, and what was done."""
    from rl_assets.graph.dataset import GraphDataset
    from rl_assets.spec.dataset import DataToRolloutSpec

    spec = DataToRolloutSpec.model_validate(
        {
            "dataset": "large",
            "data": {
                "train_files": "data/large/rows.parquet",
                "max_prompt_length": 512,
                "max_response_length": 96,
                "train_max_samples": rolled_out,
            },
            "policy": {"path": str(POLICY)},
            "rollout": {"n": 2},
        }
    )
    (folder / "home").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "home")) as instance:
        job = definitions(GraphDataset(spec, folder)).resolve_implicit_global_asset_job_def()
        start = time.perf_counter()
        result = job.execute_in_process(instance=instance)
        seconds = time.perf_counter() - start
    shown = {
        e.asset_key.path[-1]: e.materialization.metadata for e in result.get_asset_materialization_events()
    }
    return {
        "seconds": seconds,
        "recomputed": sum("unchanged" not in metadata for metadata in shown.values()),
        "generated": int(shown["rollouts"]["generated_responses"].value),  # type: ignore[arg-type]
        **_steps(result),
    }


def _steps(result: dg.ExecuteInProcessResult) -> dict[str, float]:
    """Seconds of every step."""
    return {
        event.step_key: event.step_success_data.duration_ms / 1e3
        for event in result.all_events
        if event.is_step_success and event.step_key
    }


def measure(
    count: int = 100_000, rolled_out: int | None = None, kinds: Sequence[str] = BUILDS
) -> dict[str, dict[str, float]]:
    """Build, build again, and build with one changed row: for each, seconds in all and by step.

    Args:
        count: raw rows.
        rolled_out: prompts that are rolled out; None takes one in a thousand.
        kinds: which of `BUILDS` are made, in their order.
    """
    rolled_out = max(1, count // _ONE_IN) if rolled_out is None else rolled_out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builds = {}
        for what in kinds:
            if what != "no change":
                write(count, folder / "data/large/rows.parquet", changed=what == "one row")
            builds[what] = _in_process(folder, rolled_out)
    return builds


def _in_process(folder: Path, rolled_out: int) -> dict[str, Any]:
    code = (
        f"import json; from pathlib import Path; from benchmarks.rebuild import build; "
        f"print(json.dumps(build(Path({str(folder)!r}), {rolled_out})))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print what `measure` found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    builds = measure(arguments.rows)
    first = builds["first"]
    rest = first["seconds"] - first["large__rollouts"]
    print(f"{arguments.rows:,} rows, {os.cpu_count()} cores")
    for what, found in builds.items():
        took = found["seconds"]
        print(
            f"  {what:10}{took:8.1f} s  {took / first['seconds']:7.1%} of the first, {took / rest:7.1%} of "
            "it without its rollouts; "
            f"{found['recomputed']:.0f} assets recomputed, {found['generated']:.0f} responses generated"
        )
    print(f"  {'step':34}" + "".join(f"{what:>11}" for what in builds))
    for step in (key for key in first if key not in ("seconds", "recomputed", "generated")):
        print(f"  {step:34}" + "".join(f"{found.get(step, 0):10.2f}s" for found in builds.values()))


if __name__ == "__main__":
    main()
