"""The benchmark book: everything that is measured, beside its peer, in one run.

    python -m benchmarks.book                     # writes benchmarks/RESULTS.md and benchmarks/results.json
    python -m benchmarks.book --quick --out DIR   # on a few rows: whether it runs, not how fast
    python -m benchmarks.book --only shard_write  # prints, and writes only where --out says so
    python -m benchmarks.book --gpu               # the rollouts and the length gate on a CUDA device

A figure is the median over its runs; ours and the peer's alternate in one run on one machine. A benchmark
that fails is a line of the table, and the exit status is 0.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.million import SIZES, exponents, measure, peak
from benchmarks.process import call
from tests.verl_wheel import ROOT, VERSION

HERE = Path(__file__).parent
PACKAGES = ("dagster", "pyarrow", "datasets", "tokenizers", "transformers", "torch")
POLICY = "data/policies/SmolLM2-135M-Instruct"


class Figure(NamedTuple):
    """One line of the book.

    Attributes:
        ours, peer: what was measured, in `unit`.
        ratio: so many times better ours is, whether more is better or less.
        runs: how many runs the medians are of.
    """

    ours: float
    peer: float
    ratio: float
    unit: str
    peer_name: str
    runs: int


def more(pair: Mapping[str, float], unit: str, peer_name: str, runs: int) -> Figure:
    """A figure of which more is better."""
    return Figure(pair["ours"], pair["peer"], pair["ours"] / pair["peer"], unit, peer_name, runs)


def less(pair: Mapping[str, float], unit: str, peer_name: str, runs: int) -> Figure:
    """A figure of which less is better."""
    return Figure(pair["ours"], pair["peer"], pair["peer"] / pair["ours"], unit, peer_name, runs)


def contract(quick: bool) -> dict[str, Figure]:
    """The field contract, from a parquet file."""
    rows, runs = (200, 1) if quick else (50_000, 5)
    found = call("contract.compare", rows, runs, verl=True)
    return {"contract_rows": more(found["rows.parquet"], "rows/s", "verl: RLHFDataset, every item", runs)}


def length_gate(quick: bool) -> dict[str, Figure]:
    """The length gate."""
    rows, runs = (200, 1) if quick else (100_000, 3)
    found = call("length_gate.compare", rows, runs, POLICY)
    return {
        name: more(
            {"ours": found["ours"], "peer": found[peer]}, "rows/s", f"{what}, a process per core", runs
        )
        for name, peer, what in (
            ("length_gate_rows", "verl", "verl: filter_overlong_prompts"),
            ("length_gate_vs_map", "datasets", "datasets: map and filter"),
        )
    }


def shards(quick: bool) -> dict[str, Figure]:
    """The shard store."""
    rows, runs = (200, 1) if quick else (10_000, 7)
    found = call("shards.measure", rows, runs, verl=True)
    return {
        "shard_write": more(found["shard_write"], "rows/s", "verl: save_to_disk (pickle)", runs),
        "shard_read": more(found["shard_read"], "rows/s", "verl: load_from_disk (pickle)", runs),
        "shard_bytes": less(found["shard_bytes"], "bytes/row", "verl: save_to_disk (pickle)", runs),
    }


def rollouts(quick: bool, *options: str) -> dict[str, Figure]:
    """The rollout engine, at the same policy, prompts, n, limit and precision."""
    size, runs = (["--prompts", "1", "--n", "1", "--new-tokens", "2"], 1) if quick else ([], 3)
    found = call("rollout.compare", [*size, "--repeats", str(runs), "--verl", *options])
    rate = {name: figures["tokens_per_second"] for name, figures in found.items()}
    peers = {"verl": "verl: HFRollout", "generate": "transformers: generate"}
    return {
        f"rollout_tokens_vs_{name}": more(
            {"ours": rate["engine"], "peer": rate[name]}, "tokens/s", peer, runs
        )
        for name, peer in peers.items()
    }


def rebuild(quick: bool) -> dict[str, Figure]:
    """A build of the whole graph in which nothing has changed."""
    size, runs = ((20, 1), 1) if quick else ((100_000, None), 3)
    kinds = {"peer": "first", "ours": "no change"}
    builds = [call("rebuild.measure", *size, tuple(kinds.values()), quiet=True) for _ in range(runs)]
    pair = {name: median(build[kind]["seconds"] for build in builds) for name, kind in kinds.items()}
    return {"rebuild_no_change": less(pair, "s", "the first build", runs)}


def large(quick: bool) -> dict[str, Figure]:
    """A million rows from raw files to shards."""
    found = measure((100, 200) if quick else SIZES)
    gib = {"ours": peak(found) / 2**30, "peer": 2.0}
    growth = exponents(found)["all"]
    # What is paid once makes growth look slower than linear: that is no merit.
    linear = Figure(growth, 1.0, 1 / max(1.0, growth), "exponent of rows", "linear growth", 1)
    return {
        "million_rows_rss": less(gib, "GiB per process", "the limit that is set", 1),
        "growth_exponent": linear,
    }


def rollouts_on_cuda(quick: bool) -> dict[str, Figure]:
    """The rollout engine on a CUDA device, with as many rows at once as such a device is made for."""
    return rollouts(quick, "--device", "cuda", *(() if quick else ("--prompts", "512", "--rows", "256")))


GROUPS: dict[Callable[[bool], dict[str, Figure]], tuple[str, ...]] = {
    contract: ("contract_rows",),
    length_gate: ("length_gate_rows", "length_gate_vs_map"),
    shards: ("shard_write", "shard_read", "shard_bytes"),
    rebuild: ("rebuild_no_change",),
    large: ("million_rows_rss", "growth_exponent"),
    rollouts: ("rollout_tokens_vs_verl", "rollout_tokens_vs_generate"),
}
GPU_GROUPS = {rollouts_on_cuda: GROUPS[rollouts], length_gate: GROUPS[length_gate]}


def run(
    groups: Mapping[Callable[[bool], dict[str, Figure]], tuple[str, ...]],
    quick: bool,
    keep: Callable[[dict[str, Figure | str]], None] = lambda book: None,
) -> dict[str, Figure | str]:
    """Every figure of the groups by name, or why there is none; `keep` gets the book after each group."""
    book: dict[str, Figure | str] = {}
    for group, names in groups.items():
        print(f"== {', '.join(names)}", flush=True)
        start = time.perf_counter()
        try:
            book |= group(quick)
        except Exception as error:  # one that fails is a line of the table
            book |= dict.fromkeys(names, f"{type(error).__name__}: {error}")
        print(f"== {time.perf_counter() - start:.0f} s", flush=True)
        keep(book)
    return book


def as_json(book: Mapping[str, Figure | str]) -> dict[str, dict[str, Any]]:
    """The figures as `results.json` has them; one that failed has `failed` instead."""
    return {
        name: {"failed": figure} if isinstance(figure, str) else figure._asdict()
        for name, figure in book.items()
    }


def as_markdown(book: Mapping[str, Figure | str], command: str) -> str:
    """The figures as `RESULTS.md` shows them, with what they were measured on."""
    lines = [
        "# Benchmarks",
        "",
        f"Made by {command} on {datetime.date.today()}: {machine()}. {versions()}.",
        "",
        "A figure is the median of its runs. The ratio says how many times better ours is, also where less",
        "is better; below 1 the peer is better. Growth slower than linear counts as linear; it is the slope",
        "over ten thousand, a hundred thousand and a million rows. Memory is the most of any process there.",
        "",
        "| benchmark | ours | peer | unit | ratio | peer is | runs |",
        "|---|---:|---:|---|---:|---|---:|",
    ]
    for name, figure in book.items():
        if isinstance(figure, str):
            lines.append(f"| `{name}` | failed | | | | {figure.replace('|', '/')} | |")
        else:
            ours, peer = (f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in figure[:2])
            lines.append(
                f"| `{name}` | {ours} | {peer} | {figure.unit} | **{figure.ratio:.2f}** | {figure.peer_name} "
                f"| {figure.runs} |"
            )
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Processor, cores, memory and accelerator, without names of their own."""
    import torch

    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        model[1] if model else platform.machine(),
        f"{len(os.sched_getaffinity(0))} cores",
        f"{memory:.0f} GiB",
    ]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def versions() -> str:
    """Python's and the packages' versions that the figures depend on."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *found, f"verl {VERSION}"])


def main() -> None:
    """Run the book."""
    names = [name for group in GROUPS.values() for name in group]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rows")
    parser.add_argument("--only", choices=names, metavar="NAME", help="one of: " + ", ".join(names))
    parser.add_argument("--gpu", action="store_true", help="what a CUDA device changes")
    parser.add_argument("--out", type=Path, help="the folder to write to; benchmarks/ for a whole book")
    arguments = parser.parse_args()
    if arguments.gpu:
        import torch

        if not torch.cuda.is_available():
            print("There is no CUDA device that PyTorch sees; nothing was measured.")
            return
    groups = GPU_GROUPS if arguments.gpu else GROUPS
    chosen = {group: names for group, names in groups.items() if arguments.only in (None, *names)}
    made_by = "make bench-gpu" if arguments.gpu else "make bench"
    command = made_by + (" on a few rows: no measurement" if arguments.quick else "")
    out = arguments.out or (None if arguments.only or arguments.quick else HERE)
    suffix = "-gpu" if arguments.gpu else ""

    def keep(book: dict[str, Figure | str]) -> None:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"RESULTS{suffix}.md").write_text(as_markdown(book, command))
            (out / f"results{suffix}.json").write_text(json.dumps(as_json(book), indent=2) + "\n")

    book = run(chosen, arguments.quick, keep)
    print(as_markdown(book, command))
    if out is not None:
        print(f"written to {os.path.relpath(out, ROOT)}/RESULTS{suffix}.md and results{suffix}.json")
    if failed := [name for name, figure in book.items() if isinstance(figure, str)]:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
