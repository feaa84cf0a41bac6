"""Attention row by row: what sdpa computes, and the same bits for a row in every batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl_assets.rollout.attention import ROW_ATTENTION
from rl_assets.rollout.decode import Decoder
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy, load_policy
from rl_assets.rollout.requests import Prompt, Response
from tests.rollout import tiny

KINDS = ["llama", "qwen3", "mistral", "gemma3", "qwen2_5_vl", "qwen3_vl"]
Made = dict[tuple[str, int], Response]


def decode(policy: Policy, prompts: list[Prompt], rows: int, without: Made | None = None) -> Made:
    """Three samples of every prompt, except those of `without`."""
    made: Made = {}
    wanted = [(p, [i for i in range(3) if (p.uid, i) not in (without or {})]) for p in prompts]
    Decoder(policy, SamplingParams(n=3, temperature=0.9), max_batch_size=rows, log=lambda _: None).run(
        wanted, lambda prompt, index, response: made.__setitem__((prompt.uid, index), response)
    )
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_every_batch(tiny_policy: Callable[[str], Policy], kind: str) -> None:
    policy = tiny_policy(kind)
    prompts = [Prompt(f"text-{row}", tuple(ids), 20) for row, ids in enumerate(tiny.text_ids(9, 40))]
    if "vl" in kind:
        prompts += tiny.media_prompts(20, kind)
    whole = decode(policy, prompts, 64)
    assert decode(policy, prompts[::-1], 5) == whole
    for prompt in prompts[::3]:
        assert decode(policy, [prompt], 1).items() <= whole.items()
    kept = {key: whole[key] for number, key in enumerate(whole) if number % 3}
    assert kept | decode(policy, prompts, 64, without=kept) == whole


@pytest.mark.parametrize("threads", [1, 2])
def test_the_demo_policy_too_whatever_the_threads(policy: Path, threads: int) -> None:
    """Real sizes: the library's kernels for large products, and top-p's sums over a whole vocabulary."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with load_policy(policy, device="cpu") as loaded:
            prompts = [
                Prompt(f"uid-{row}", tuple(range(1000, 1000 + length)), 4)
                for row, length in enumerate((40, 3, 25, 40))
            ]
            whole = decode(loaded, prompts, 64)
            assert decode(loaded, prompts[1:2], 1).items() <= whole.items()
            assert decode(loaded, prompts[::-1], 5) == whole
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_sdpa_computes(tmp_path: Path, kind: str) -> None:
    folder = tiny.save(kind, tmp_path / kind)
    rows = tiny.text_ids(4, 30)
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    with (
        load_policy(folder, device="cpu") as ours,
        load_policy(folder, device="cpu", attn_implementation="sdpa") as theirs,
    ):
        assert ours.text_config._attn_implementation == ROW_ATTENTION
        assert theirs.text_config._attn_implementation == "sdpa"
        found, expected = (
            each.model(input_ids=ids, attention_mask=mask).logits[mask.bool()] for each in (ours, theirs)
        )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
