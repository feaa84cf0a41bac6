"""The length gate beside verl's overlong filter and `datasets.map`: the same rows, tokenizer and cores.

verl's `RLHFDataset` loads the raw file, then filters it with one process per core; only the filter counts,
not the loading. With `datasets.map`, a process per core too, every batch is rendered and encoded, and the
rows that fit are kept with their ids. Ours is the whole gate: it reads the contract's table, renders and
encodes every row, holds a sample against transformers, and writes the rows that fit with their token ids.
Runs alternate and the median counts; all must keep the same rows. Rows are word problems like those of
data/gsm_symbolic, one to nine in a prompt.

Then a rebuild in which one row of a hundred changed, one with another limit, and how much of the gate's time
is rendering and encoding. verl lies in a folder of its own, made on first use:

    python -m benchmarks.length_gate [--rows 100000] [--repeats 3] [--policy FOLDER]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import contract as contract_benchmark
from rl_assets.base.jsontext import decode
from rl_assets.base.tables import Table
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.prompts.length import LengthResult, filter_by_length
from rl_assets.prompts.render import PromptRenderer
from tests.verl_wheel import ROOT, verl_site

LIMIT = 128
_CORES = len(os.sched_getaffinity(0))


def rows(count: int, changed: int = 0) -> Iterator[dict[str, Any]]:
    """`count` different prompts of one to nine problems; the last `changed` of them are others than usual."""
    problems = contract_benchmark.rows(9 * count)
    for index in range(count):
        parts = [next(problems) for _ in range(index % 9 + 1)]
        asked = "\n\n".join(part["prompt"][0]["content"] for part in parts)
        if index >= count - changed:
            asked += "\n\nThink step by step."
        yield {**parts[0], "prompt": [{"role": "user", "content": asked}]}


def accepted(count: int, folder: Path, changed: int = 0) -> Table:
    """The rows as a raw file in `folder`, and as the contract's table."""
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(list(rows(count, changed))), folder / "rows.parquet")
    manifest = scan_files("rows.parquet", root=folder)
    return apply_contract(manifest, ContractOptions(), root=folder, folder=folder).accepted


def gate(
    table: Table,
    renderer: PromptRenderer,
    folder: Path,
    limit: int = LIMIT,
    earlier: tuple[Table, Table] | None = None,
) -> LengthResult:
    """The whole gate, its tables written to `folder`."""
    folder.mkdir(exist_ok=True)
    return filter_by_length(
        table, renderer, max_prompt_length=limit, folder=folder, log=lambda _: None, earlier=earlier
    )


class Peer:
    """Another filter over a raw file, loaded, in a process of its own that filters when asked."""

    def __init__(self, name: str, raw: Path, policy: str) -> None:
        path = os.pathsep.join(map(str, [verl_site(), ROOT]))
        call = f"serve({name!r}, {str(raw)!r}, {policy!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from benchmarks.length_gate import serve; {call}"],
            env={**os.environ, "PYTHONPATH": path, "HF_DATASETS_CACHE": str(raw.parent / "cache")},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask()

    def __call__(self) -> tuple[float, list[int]]:
        """Filter once: the seconds that took, and the `extra_info.index` of the rows that are left."""
        seconds, left = self._ask()
        return seconds, left

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("["):
            assert line, "the peer's process ended"
        return json.loads(line)


def serve(name: str, raw: str, policy: str) -> None:
    """Load a peer; then answer every line of input with the seconds of a filter and what it left."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    datasets.disable_caching()
    filtered = PEERS[name](raw, AutoTokenizer.from_pretrained(policy))
    sys.stdin.readline()
    print("[]", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        left = filtered()
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, [info["index"] for info in left["extra_info"]]]), flush=True)


def verls_filter(raw: str, tokenizer: Any) -> Callable[[], Any]:
    """verl's own dataset, whose filter is called again and again."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    settings = {
        "max_prompt_length": LIMIT,
        "filter_overlong_prompts": False,
        "filter_overlong_prompts_workers": _CORES,
        "cache_dir": str(Path(raw).parent),
    }
    dataset = RLHFDataset([raw], tokenizer=tokenizer, config=OmegaConf.create(settings))
    dataset.filter_overlong_prompts = True
    return lambda: dataset.maybe_filter_out_long_prompts(dataset.dataframe)


def datasets_map(raw: str, tokenizer: Any) -> Callable[[], Any]:
    """What one would write with `datasets` alone."""
    from datasets import Dataset

    dataset = Dataset.from_parquet(raw)

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        texts = tokenizer.apply_chat_template(batch["prompt"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"prompt_ids": ids, "fits": [len(row) <= LIMIT for row in ids]}

    def filtered() -> Any:
        encoded = dataset.map(encode, batched=True, num_proc=_CORES)
        return encoded.filter(lambda fits: fits, input_columns="fits")

    return filtered


PEERS = {"verl": verls_filter, "datasets": datasets_map}


def compare(count: int, repeats: int, policy: str) -> dict[str, float]:
    """Time all in turns, hold their answers against each other, and print rows per second.

    Returns:
        Rows per second: `ours`, and those of the `PEERS`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = accepted(count, folder / "raw")
        renderer = PromptRenderer.load(policy)
        peers = {peer: Peer(peer, folder / "raw/rows.parquet", policy) for peer in PEERS}
        took: dict[str, list[float]] = {who: [] for who in ("ours", *peers)}
        for _ in range(repeats):
            start = time.perf_counter()
            result = gate(table, renderer, folder / "gate")
            took["ours"].append(time.perf_counter() - start)
            for who, peer in peers.items():
                seconds, left = peer()
                took[who].append(seconds)
                _require_equal(result, left, renderer)
        for peer in peers.values():
            peer.close()
        rates = {who: count / statistics.median(seconds) for who, seconds in took.items()}
        lengths = result.kept.read(["prompt_length"]).column(0).to_pylist()
        print(
            f"{count:,} rows, {len(lengths):,} kept at {LIMIT} tokens, {statistics.mean(lengths):.0f} each; "
            f"median of {repeats}, {_CORES} cores, a process per core for the peers"
        )
        print(f"  length gate             {rates['ours']:10,.0f} rows/s, ids by {result.encoder}")
        for who, what in (("verl", "verl's filter"), ("datasets", "datasets.map")):
            times = rates["ours"] / rates[who]
            print(f"  {what:24}{rates[who]:10,.0f} rows/s, the gate is {times:.1f} times as fast")
        _rebuilds(count, folder, result, table, renderer)
        _parts(table, renderer)
        code = f"from benchmarks.length_gate import memory; memory({str(table.path)!r}, {policy!r})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    return rates


def memory(table: str, policy: str) -> None:
    """Send the rows through the gate and print the most memory that this process had, before and after."""
    renderer = PromptRenderer.load(policy)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    with tempfile.TemporaryDirectory() as folder:
        gate(Table(Path(table)), renderer, Path(folder))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  at most {after:.2f} GiB of resident memory, {before:.2f} GiB with the tokenizer alone")


def _require_equal(result: LengthResult, left: list[int], renderer: PromptRenderer) -> None:
    """Stop unless both kept the same rows, and the ids are the tokenizer's own."""
    kept = list(result.kept.rows(["extra_info", "prompt", "prompt_ids"]))
    assert [decode(row["extra_info"])["index"] for row in kept] == left, "the kept rows differ"
    for row in kept[:: max(1, len(kept) // 500)]:
        ids = renderer.tokenizer.apply_chat_template(
            decode(row["prompt"]), add_generation_prompt=True, return_dict=False
        )
        assert row["prompt_ids"] == ids, "the ids differ"


def _rebuilds(count: int, folder: Path, first: LengthResult, table: Table, renderer: PromptRenderer) -> None:
    earlier = (first.kept, first.overlong)
    changed = accepted(count, folder / "changed", changed=count // 100)
    for what, contract, limit in (
        ("rebuild, 1% changed", changed, LIMIT),
        ("rebuild, other limit", table, LIMIT // 2),
    ):
        start = time.perf_counter()
        again = gate(contract, renderer, folder / "again", limit, earlier)
        took = time.perf_counter() - start
        print(f"  {what:24}{count / took:10,.0f} rows/s, {again.rendered:,} rows rendered")


def _parts(table: Table, renderer: PromptRenderer) -> None:
    prompts = [decode(row["prompt"]) for row in table.rows(["prompt"])]
    start = time.perf_counter()
    texts = [renderer.template.render(messages) for messages in prompts]
    rendered = time.perf_counter()
    for first in range(0, len(texts), 2048):
        renderer.encoder.encode(texts[first : first + 2048])
    encoded = time.perf_counter()
    print(f"  of it rendering         {len(texts) / (rendered - start):10,.0f} rows/s")
    print(f"  of it encoding          {len(texts) / (encoded - rendered):10,.0f} rows/s")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--policy", default="data/policies/SmolLM2-135M-Instruct")
    arguments = parser.parse_args()
    compare(arguments.rows, arguments.repeats, arguments.policy)


if __name__ == "__main__":
    main()
