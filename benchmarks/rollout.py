"""Useful tokens per second of the rollout engine, of plain `generate`, and of verl's Hugging Face rollout.

    python -m benchmarks.rollout                      # the engine and `generate`
    python -m benchmarks.rollout --verl               # verl's algorithm as well (installs its wheel aside)
    python -m benchmarks.rollout --device cuda --policy path/to/policy --prompts 512

All take the same policy, prompts, n, limit, temperature, precision and most rows at once, in turns, in one
process; of several runs the one of the median rate counts. A useful token is one up to and including the
first EOS of its response. What is compared:

* engine: `generate_rollouts`.
* generate: `model.generate(num_return_sequences=n)` over prompts sorted by length, each batch padded to
  its own longest prompt.
* verl: `HFRollout.generate_sequences` of the verl wheel, its object made without the constructor that its
  base class broke: prompts repeated n times, everything padded to the prompt length. It asks for bfloat16
  autocast, which is switched off around the model so that all three compute alike.
"""

import argparse
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rl_assets.protocol.dataproto import DataProto
from rl_assets.rollout.engine import generate_rollouts
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy, load_policy

ROOT = Path(__file__).parent.parent
Run = Callable[[], int]


def compare(arguments: Sequence[str]) -> dict[str, dict[str, float]]:
    """Run the comparison; print the figures of each as they come, as JSON, and a table, and return them.

    Args:
        arguments: those of the command line.
    """
    options = parse(arguments)
    with load_policy(options.policy, device=options.device, dtype=options.dtype) as policy:
        ids = prompt_ids(policy, options.prompts)
        lengths = [len(row) for row in ids]
        print(
            f"{Path(options.policy).name} on {device_name(policy)} ({policy.dtype}), {len(ids)} prompts of "
            f"{min(lengths)} to {max(lengths)} tokens × n = {options.n}, up to {options.new_tokens} new, "
            f"{options.rows} rows at once, load average before: {os.getloadavg()[0]:.1f}"
        )
        arms: dict[str, Run] = {
            "engine": lambda: engine(policy, ids, options),
            "generate": lambda: plain_generate(policy, ids, options),
        }
        if options.verl:
            arms["verl"] = lambda: verl(policy, ids, options)
        warm_up(policy, ids)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
        for _ in range(options.repeats):
            for name, run in arms.items():
                runs[name].append(measure(run, policy))
                print(name, json.dumps(runs[name][-1]), flush=True)
        figures = {name: _median(found) for name, found in runs.items()}
        report(figures, policy, options)
    return figures


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    """The run of the median rate; of an even number the slower of the two in the middle."""
    return sorted(runs, key=lambda run: run["tokens"] / run["seconds"])[(len(runs) - 1) // 2]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description="Benchmark of the rollout engine.")
    parser.add_argument("--policy", default=str(ROOT / "data/policies/SmolLM2-135M-Instruct"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64, help="most rows at once")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--verl", action="store_true", help="measure verl's algorithm too")
    parser.add_argument(
        "--bandwidth", type=float, help="the device's memory bandwidth in GB/s, for the bound"
    )
    return parser.parse_args(arguments)


def prompt_ids(policy: Policy, count: int) -> list[list[int]]:
    """Word problems of the sample dataset, rendered with the policy's chat template."""
    rows = [json.loads(line) for line in (ROOT / "data/gsm_symbolic/test.jsonl").read_text().splitlines()]
    chosen = random.Random(0).choices(rows, k=count)
    rendered = [
        policy.tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in chosen
    ]
    return policy.tokenizer(rendered, add_special_tokens=False)["input_ids"]


def device_name(policy: Policy) -> str:
    """What is computed on."""
    if policy.device.type == "cuda":
        return torch.cuda.get_device_name(policy.device)
    return f"CPU, {torch.get_num_threads()} threads"


def warm_up(policy: Policy, ids: Sequence[Sequence[int]]) -> None:
    """One short pass, so that nobody pays for the first use of the libraries."""
    policy.model.generate(torch.tensor([ids[0]], device=policy.device), max_new_tokens=2, do_sample=False)


def measure(run: Run, policy: Policy) -> dict[str, float]:
    """Useful tokens, wall seconds and CPU seconds of one run."""
    torch.manual_seed(0)
    cpu, start = cpu_seconds(), time.perf_counter()
    tokens = run()
    if policy.device.type == "cuda":
        torch.cuda.synchronize(policy.device)
    return {"tokens": tokens, "seconds": time.perf_counter() - start, "cpu_seconds": cpu_seconds() - cpu}


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def engine(policy: Policy, ids: Sequence[Sequence[int]], options: argparse.Namespace) -> int:
    """The project's own rollout."""
    rollouts = generate_rollouts(
        policy,
        DataProto.from_dict(
            non_tensors={
                "uid": np.array([f"uid-{row}" for row in range(len(ids))], dtype=object),
                "prompt_ids": column(ids),
            }
        ),
        SamplingParams(n=options.n),
        prompt_length=options.prompt_length,
        response_length=options.new_tokens,
        max_batch_size=options.rows,
        log=lambda line: print(f"  {line}", file=sys.stderr),
    )
    return int(rollouts.batch["response_mask"].sum())


def plain_generate(policy: Policy, ids: Sequence[Sequence[int]], options: argparse.Namespace) -> int:
    """transformers' `generate` over batches of like length."""
    per_batch, useful = max(1, options.rows // options.n), 0
    ordered = sorted(ids, key=len, reverse=True)
    for first in range(0, len(ordered), per_batch):
        batch = ordered[first : first + per_batch]
        tokens, mask = padded(batch, max(map(len, batch)), policy)
        output = policy.model.generate(
            input_ids=tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_return_sequences=options.n,
            max_new_tokens=options.new_tokens,
            eos_token_id=list(policy.eos_token_ids),
            pad_token_id=policy.pad_token_id,
        )
        useful += useful_tokens(output[:, tokens.shape[1] :], policy)
    return useful


def verl(policy: Policy, ids: Sequence[Sequence[int]], options: argparse.Namespace) -> int:
    """verl's `HFRollout`, fed as its trainer feeds it."""
    from tests.verl_wheel import verl_site

    # First on the path: verl needs an older antlr4 than the environment has.
    sys.path.insert(0, str(verl_site()))
    from verl import DataProto as VerlProto
    from verl.workers.rollout.hf_rollout import HFRollout

    class Config(dict):
        __getattr__ = dict.__getitem__

    class Constructible(HFRollout):
        pass

    Constructible.__abstractmethods__ = frozenset()
    rollout = object.__new__(Constructible)
    rollout.module = same_precision(policy, -(-len(ids) * options.n // options.rows))
    rollout.config = Config(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        response_length=options.new_tokens,
        micro_batch_size=options.rows,
    )
    repeated = [row for row in ids for _ in range(options.n)]
    tokens, mask = padded(repeated, options.prompt_length, policy)
    batch = VerlProto.from_dict(
        tensors={
            "input_ids": tokens,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        },
        meta_info={"eos_token_id": list(policy.eos_token_ids), "pad_token_id": policy.pad_token_id},
    )
    return useful_tokens(rollout.generate_sequences(batch).batch["responses"], policy)


def same_precision(policy: Policy, calls: int) -> Any:
    """The model as verl calls it, without the autocast that verl puts around it; it says how far it is."""
    numbers = iter(range(1, calls + 1))

    def generate(**arguments: Any) -> Any:
        print(f"  verl: batch {next(numbers)} of {calls}", file=sys.stderr, flush=True)
        with torch.autocast(policy.device.type, enabled=False):
            return policy.model.generate(**arguments)

    return SimpleNamespace(generate=generate, eval=policy.model.eval, train=lambda: None)


def padded(ids: Sequence[Sequence[int]], width: int, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded tokens and their mask, (rows, width) each."""
    tokens = torch.tensor([[policy.pad_token_id] * (width - len(row)) + list(row) for row in ids])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    return tokens.to(policy.device), mask.to(policy.device)


def useful_tokens(responses: torch.Tensor, policy: Policy) -> int:
    """Tokens up to and including the first EOS of every row."""
    ends = torch.isin(responses, torch.tensor(policy.eos_token_ids, device=responses.device)).long()
    return int((ends.cumsum(-1) - ends == 0).sum())


def column(values: Sequence[Sequence[int]]) -> np.ndarray:
    """An object array of lists."""
    made = np.empty(len(values), dtype=object)
    made[:] = [list(value) for value in values]
    return made


def report(figures: dict[str, dict[str, float]], policy: Policy, options: argparse.Namespace) -> None:
    """Print the comparison."""
    base = figures["engine"]
    print(
        f"{'':10}{'tokens':>9}{'wall s':>9}{'tokens/s':>10}{'CPU s':>9}{'tokens/CPU s':>14}{'engine is':>22}"
    )
    for name, own in figures.items():
        wall, cpu = own["tokens"] / own["seconds"], own["tokens"] / own["cpu_seconds"]
        own["tokens_per_second"] = wall
        faster = base["tokens"] / base["seconds"] / wall
        leaner = base["tokens"] / base["cpu_seconds"] / cpu
        print(
            f"{name:10}{own['tokens']:9,.0f}{own['seconds']:9.1f}{wall:10.1f}{own['cpu_seconds']:9.1f}{cpu:14.1f}"
            f"{f'{faster:.2f}x (CPU {leaner:.2f}x)':>22}"
        )
    print(f"load average after: {os.getloadavg()[0]:.1f}")
    if options.bandwidth:
        bound = memory_bound(policy, options)
        share = base["tokens_per_second"] / bound
        print(f"bound of the memory's bandwidth: {bound:,.0f} tokens/s; the engine reaches {share:.1%}")


def memory_bound(policy: Policy, options: argparse.Namespace) -> float:
    """Tokens per second if a step only read the weights once, and the cache of full rows of mean length."""
    weights = sum(part.numel() * part.element_size() for part in policy.model.parameters())
    config = policy.text_config
    heads = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    per_token = 2 * config.num_hidden_layers * heads * policy.dtype.itemsize
    cache = options.rows * per_token * (options.prompt_length + options.new_tokens) / 2
    return options.rows * options.bandwidth * 1e9 / (weights + cache)


if __name__ == "__main__":
    compare(sys.argv[1:])
