"""The field contract beside verl's dataset: raw rows to an accepted table, and raw rows to items.

Both read the same files, whose rows are those of data/gsm_symbolic, each made unique. verl loads the file
and takes every item once; the contract judges every row, gives it a uid and writes the table. Runs
alternate and the median counts. verl lies in a folder of its own, made on first use:

    python -m benchmarks.contract [--rows 50000] [--repeats 5]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.process import call
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from tests.verl_wheel import ROOT

_CHUNK = 10_000


def rows(count: int) -> Iterator[dict[str, Any]]:
    """`count` different rows like those of the sample dataset."""
    sample = pq.read_table(ROOT / "data/gsm_symbolic/train-00000.parquet").to_pylist()
    for index in range(count):
        row = sample[index % len(sample)]
        content = row["prompt"][0]["content"].replace(". ", f". ({index}) ", 1)
        extra_info = {**row["extra_info"], "index": index, "question": content}
        yield {**row, "prompt": [{"role": "user", "content": content}], "extra_info": extra_info}


def write(count: int, folder: Path) -> None:
    """The same rows as `rows.parquet` and `rows.jsonl`."""
    schema = pa.Table.from_pylist(list(rows(1))).schema
    source = rows(count)
    with (
        pq.ParquetWriter(folder / "rows.parquet", schema) as parquet,
        (folder / "rows.jsonl").open("w") as lines,
    ):
        for start in range(0, count, _CHUNK):
            chunk = [next(source) for _ in range(min(_CHUNK, count - start))]
            parquet.write_table(pa.Table.from_pylist(chunk, schema=schema))
            lines.writelines(json.dumps(row) + "\n" for row in chunk)


def ours(folder: Path, name: str) -> int:
    """Judge every row of a file and write the tables; returns how many were accepted."""
    manifest = scan_files(name, root=folder)
    result = apply_contract(manifest, ContractOptions(), root=folder, folder=folder)
    return result.accepted_rows


def theirs(folder: Path, name: str) -> int:
    """Load a file with verl's dataset and take every item once; returns how many there are."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    with tempfile.TemporaryDirectory() as cache:
        os.environ["HF_DATASETS_CACHE"] = cache
        config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": cache})
        dataset = RLHFDataset([str(folder / name)], tokenizer=None, config=config)
        return sum(1 for index in range(len(dataset)) if dataset[index]["raw_prompt"])


def compare(count: int, repeats: int) -> dict[str, dict[str, float]]:
    """Time both in turns, print rows per second and return them: by file, `ours` and `peer`."""
    import datasets

    datasets.disable_progress_bars()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "few").mkdir()
        write(10, folder / "few")
        theirs(folder / "few", "rows.parquet")  # so that nothing that is loaded once counts
        write(count, folder)
        for file in ("rows.parquet", "rows.jsonl"):
            print(f"{file}: {count:,} rows, median of {repeats}, {os.cpu_count()} cores")
            sides = {"verl, load and items": theirs, "contract, to table": ours}
            times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            for _ in range(repeats):
                for side, work in sides.items():
                    times[side].append(_timed(lambda work=work, file=file: work(folder, file), count))
            medians = {
                side: [statistics.median(t) for t in zip(*taken, strict=True)]
                for side, taken in times.items()
            }
            for side, (wall, cpu) in medians.items():
                print(f"  {side:24}{count / wall:10,.0f} rows/s{count / cpu:10,.0f} rows per CPU second")
            verl, contract = medians.values()
            print(f"  {'ratio':24}{verl[0] / contract[0]:10.1f}       {verl[1] / contract[1]:10.1f}")
            found[file] = {"ours": count / contract[0], "peer": count / verl[0]}
    return found


def _timed(work: Callable[[], int], count: int) -> tuple[float, float]:
    """Wall and CPU seconds of `work`, which must give every row."""
    wall, cpu = time.perf_counter(), time.process_time()
    assert work() == count
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Run the comparison in a process that has verl."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    call("contract.compare", arguments.rows, arguments.repeats, verl=True)


if __name__ == "__main__":
    main()
