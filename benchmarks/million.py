"""From raw files to shards with ten thousand, a hundred thousand and a million rows: time, growth, memory.

The rows are those of data/gsm_symbolic, each made unique, as parquet and as jsonl. Every stage runs in a
process of its own, which does a few rows first and then reports its seconds and the most memory that it or
a process that it started had. The growth is the slope of the stage's seconds over the rows, both as
logarithms: 1 is linear.

    python -m benchmarks.million [--rows 10000 100000 1000000]
"""

import argparse
import math
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contract import write
from benchmarks.memory import peak_bytes
from benchmarks.process import call
from tests.verl_wheel import ROOT

SIZES = (10_000, 100_000, 1_000_000)
POLICY = ROOT / "data/policies/SmolLM2-135M-Instruct"
FORMATS = ("parquet", "jsonl")
_FEW = 50

Stages = dict[str, dict[str, float]]


def scan(folder: Path, kind: str) -> None:
    """The manifest of the raw file."""
    from rl_assets.contract.files.scan import scan_files

    (folder / "manifest.json").write_text(scan_files(f"rows.{kind}", root=folder).model_dump_json())


def contract(folder: Path, kind: str) -> None:
    """The raw file to the table of accepted rows."""
    from rl_assets.contract.files.manifest import RawManifest
    from rl_assets.contract.gate import apply_contract
    from rl_assets.contract.rules.options import ContractOptions

    manifest = RawManifest.model_validate_json((folder / "manifest.json").read_bytes())
    result = apply_contract(manifest, ContractOptions(), root=folder, folder=folder)
    assert result.rejected_rows == 0, "the rows are good"


def length(folder: Path, kind: str) -> None:
    """The accepted rows to those that fit, with their token ids."""
    from rl_assets.base.tables import Table
    from rl_assets.prompts.length import filter_by_length
    from rl_assets.prompts.render import PromptRenderer

    accepted = Table(folder / "field_contract.parquet")
    renderer = PromptRenderer.load(POLICY)
    result = filter_by_length(accepted, renderer, max_prompt_length=512, folder=folder, log=lambda line: None)
    assert result.kept.num_rows == accepted.num_rows, "the rows fit"


def shards(folder: Path, kind: str) -> None:
    """The rows that fit to collated shards."""
    from rl_assets.base.tables import Table
    from rl_assets.media.store import MediaStore
    from rl_assets.protocol.sharding import ShardBudget, shard_rows
    from rl_assets.spec.rollout import ShardSpec

    budget = ShardSpec()
    shard_rows(
        Table(folder / "length_filtered.parquet"),
        folder / "shards",
        count=None,
        budget=ShardBudget(rows=budget.max_rows, bytes=budget.max_bytes),
        caps={},
        stamps={},
        media=MediaStore(folder / "media"),
        folder=folder,
        log=lambda line: None,
    )


STAGES = {"raw files": scan, "contract": contract, "length gate": length, "shards": shards}


def run_stage(name: str, folder: str, kind: str) -> dict[str, float]:
    """Run one stage in this process: its seconds and its peak of memory in bytes.

    The few rows in `folder/few` go first, so that what is loaded once is not counted.
    """
    STAGES[name](Path(folder) / "few", kind)
    start = time.perf_counter()
    STAGES[name](Path(folder), kind)
    seconds = time.perf_counter() - start
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    return {"seconds": seconds, "peak_bytes": max(peak_bytes(), children)}


def measure(sizes: Sequence[int] = SIZES) -> dict[str, dict[int, Stages]]:
    """By format and number of rows, each stage's `seconds` and `peak_bytes`.

    The stages after the contract get the same table whatever the raw file's format, so they are run once.
    """
    found: dict[str, dict[int, Stages]] = {kind: {} for kind in FORMATS}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="rl-assets-") as name:
            (Path(name) / "few").mkdir()
            write(_FEW, Path(name) / "few")
            write(size, Path(name))
            for kind, stages in zip(FORMATS[::-1], (list(STAGES)[:2], list(STAGES)), strict=True):
                found[kind][size] = {stage: call("million.run_stage", stage, name, kind) for stage in stages}
                for stage, figures in found[kind][size].items():
                    print(f"  {size:>9,} rows, {kind:8}{stage:12}{_shown(figures)}", flush=True)
    return found


def _shown(figures: dict[str, float]) -> str:
    return f"{figures['seconds']:9.1f} s{figures['peak_bytes'] / 2**30:8.2f} GiB"


def exponent(seconds: dict[int, float]) -> float:
    """Slope of the least-squares line through the logarithms of seconds over those of rows."""
    points = [(math.log(rows), math.log(took)) for rows, took in seconds.items()]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def exponents(found: dict[str, dict[int, Stages]]) -> dict[str, float]:
    """The growth of every stage, and of the whole way from a parquet file (`all`)."""
    grown = {
        f"{stage}, {kind}": exponent({size: stages[stage]["seconds"] for size, stages in by_size.items()})
        for kind, by_size in found.items()
        for stage in next(iter(by_size.values()))
    }
    whole = {
        size: sum(stage["seconds"] for stage in stages.values()) for size, stages in found["parquet"].items()
    }
    return {**grown, "all": exponent(whole)}


def peak(found: dict[str, dict[int, Stages]]) -> float:
    """The most memory that any process had, in bytes."""
    return max(
        stage["peak_bytes"]
        for by_size in found.values()
        for stages in by_size.values()
        for stage in stages.values()
    )


def main() -> None:
    """Print what `measure` found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    found = measure(parser.parse_args().rows)
    print(f"most memory of a process {peak(found) / 2**30:.2f} GiB, {os.cpu_count()} cores")
    if len(found["parquet"]) > 1:
        for stage, slope in exponents(found).items():
            print(f"  growth of {stage:24}{slope:6.2f}")


if __name__ == "__main__":
    main()
