"""Writing and reading a shard of text prompts beside verl's save_to_disk and load_from_disk.

Both store the same batch, which verl's own dataset and collate function made of the rows of
data/gsm_symbolic, once as it is and once with uids and token ids. Runs alternate and the median counts.
verl lies in a folder of its own, made on first use:

    python -m benchmarks.shards [--rows 10000] [--repeats 7]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.process import call
from tests.verl_wheel import ROOT


def verl_batch(count: int, folder: Path) -> Any:
    """`count` rows of the sample dataset, each made unique, as verl loads and collates them."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import verl
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    sample = pq.read_table(ROOT / "data/gsm_symbolic/train-00000.parquet").to_pylist()
    rows = []
    for index in range(count):
        row = sample[index % len(sample)]
        content = row["prompt"][0]["content"].replace(". ", f". ({index}) ", 1)
        extra_info = {**row["extra_info"], "index": index, "question": content}
        rows.append({**row, "prompt": [{"role": "user", "content": content}], "extra_info": extra_info})
    path = str(folder / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(folder)})
    dataset = RLHFDataset([path], tokenizer=None, config=config)
    return verl.DataProto.from_single_dict(collate_fn([dataset[index] for index in range(count)]))


def token_ids(messages: Iterable[list[dict[str, str]]]) -> list[list[int]]:
    """The ids of each prompt under the demo policy's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data/policies/SmolLM2-135M-Instruct")
    texts = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def measure(count: int, repeats: int) -> dict[str, dict[str, float]]:
    """Time both stores, without and with token ids, and print a table for each.

    Returns:
        For the batch with token ids, `ours` and `peer` of `shard_write` and `shard_read` (rows per second)
        and of `shard_bytes` (bytes per row).
    """
    from rl_assets.protocol.fields import column

    with tempfile.TemporaryDirectory() as folder:
        theirs = verl_batch(count, Path(folder))
        compare("the columns that verl loads", theirs, repeats, Path(folder) / "plain")
        theirs.non_tensor_batch["uid"] = column("uid", [f"{index:032x}" for index in range(count)])
        theirs.non_tensor_batch["prompt_ids"] = column(
            "prompt_ids", token_ids(theirs.non_tensor_batch["prompt"])
        )
        return compare("and uid and prompt_ids", theirs, repeats, Path(folder) / "ids")


def compare(title: str, theirs: Any, repeats: int, folder: Path) -> dict[str, dict[str, float]]:
    """Store the same batch both ways, in turns; what `measure` returns."""
    from rl_assets.protocol.shards import read_shard, write_shard
    from rl_assets.protocol.verl import from_verl

    data, count = from_verl(theirs), len(theirs)
    folder.mkdir()
    pickled = folder / "batch.pkl"
    stores = iter(folder / str(number) for number in range(repeats))
    written: dict[str, Any] = {}

    def ours_write() -> None:
        written["root"] = next(stores)
        written["ref"] = write_shard(written["root"], "train", data)

    steps: dict[str, Callable[[], Any]] = {
        "write, verl": lambda: theirs.save_to_disk(pickled),
        "write, ours": ours_write,
        "read, verl": lambda: type(theirs).load_from_disk(pickled),
        "read, ours": lambda: read_shard(written["root"], written["ref"]),
        "read one row, ours": lambda: read_shard(written["root"], written["ref"], rows=[count // 2]),
        "read one column, ours": lambda: read_shard(written["root"], written["ref"], columns=["index"]),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    work: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start, start_work = time.perf_counter(), time.process_time()
            step()
            times[name].append(time.perf_counter() - start)
            work[name].append(time.process_time() - start_work)
    print(f"{title}: {count:,} rows, median of {repeats}, {os.cpu_count()} cores")
    took = {name: statistics.median(found) for name, found in times.items()}
    for name, seconds in took.items():
        cpu = statistics.median(work[name])
        print(f"  {name:24}{seconds * 1e3:8.1f} ms{cpu * 1e3:8.1f} ms of CPU time")
    sizes = pickled.stat().st_size, written["ref"].bytes
    print(f"  size: verl {sizes[0]:,} bytes, ours {sizes[1]:,} bytes ({sizes[1] / sizes[0]:.0%})")
    return {
        "shard_write": {"ours": count / took["write, ours"], "peer": count / took["write, verl"]},
        "shard_read": {"ours": count / took["read, ours"], "peer": count / took["read, verl"]},
        "shard_bytes": {"ours": sizes[1] / count, "peer": sizes[0] / count},
    }


def main() -> None:
    """Run `measure` in a process that has verl."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    call("shards.measure", arguments.rows, arguments.repeats, verl=True)


if __name__ == "__main__":
    main()
