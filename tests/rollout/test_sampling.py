"""Keyed sampling draws from the right distribution, and a draw depends on nothing but its row."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.sampling import Sampler, exponential_noise, row_key, step_keys

DRAWS = 20_000


def keys(count: int, position: int = 0, seed: int = 0) -> torch.Tensor:
    return step_keys([row_key(seed, f"uid-{row}", 0) for row in range(count)], [position] * count)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard deviations the statistic lies above its mean, were the counts as expected."""
    held = expected > 0
    statistic = ((counts[held] - expected[held]) ** 2 / expected[held]).sum().item()
    freedom = int(held.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def logits(vocabulary: int, seed: int = 0, spread: float = 1.5) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    row = logits(20)
    draw = Sampler(SamplingParams(temperature=temperature), ())
    tokens, _, _ = draw(row.expand(DRAWS, -1), keys(DRAWS))
    expected = torch.softmax(row / temperature, -1) * DRAWS
    assert abs(chi_square(torch.bincount(tokens, minlength=20), expected)) < 4


def test_successive_positions_are_independent() -> None:
    row = logits(6)
    draw = Sampler(SamplingParams(), ())
    first, second = (draw(row.expand(DRAWS, -1), keys(DRAWS, position))[0] for position in (0, 1))
    probs = torch.softmax(row, -1)
    pairs = torch.bincount(first * 6 + second, minlength=36)
    assert abs(chi_square(pairs, torch.outer(probs, probs).flatten() * DRAWS)) < 4


def test_seeds_and_samples_are_independent() -> None:
    row = logits(6)
    draw = Sampler(SamplingParams(), ())
    siblings = step_keys([row_key(0, f"uid-{i}", 1) for i in range(DRAWS)], [0] * DRAWS)
    base = draw(row.expand(DRAWS, -1), keys(DRAWS))[0]
    probs = torch.softmax(row, -1)
    for other in (siblings, keys(DRAWS, seed=1)):
        pairs = torch.bincount(base * 6 + draw(row.expand(DRAWS, -1), other)[0], minlength=36)
        assert abs(chi_square(pairs, torch.outer(probs, probs).flatten() * DRAWS)) < 4


def test_noise_is_exponential() -> None:
    noise = exponential_noise(keys(200), torch.arange(5_000, dtype=torch.int32))
    # An exponential variable turns into a uniform one by its distribution function: 64 equal bins.
    bins = ((1 - torch.exp(-noise.double())) * 64).long().clamp_max(63)
    assert abs(chi_square(torch.bincount(bins.flatten(), minlength=64), torch.full((64,), 1e6 / 64))) < 4
    assert noise.min() > 0
    assert torch.isfinite(noise).all()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_draw_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 9))
    order = data.draw(st.permutations(range(rows)))
    kept = order[: data.draw(st.integers(1, rows))]
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.3, 1.0])),
        top_k=data.draw(st.sampled_from([-1, 1, 5])),
        top_p=data.draw(st.sampled_from([1.0, 0.8])),
    )
    scores = torch.stack([logits(50, seed) for seed in range(rows)])
    draw = Sampler(params, (3,))
    whole = draw(scores, keys(rows))
    part = draw(scores[kept], keys(rows)[kept])
    for of_whole, of_part in zip(whole, part, strict=True):
        assert torch.equal(of_whole[kept], of_part)


@pytest.mark.parametrize(
    ("top_k", "top_p", "vocabulary", "spread"),
    [(7, 1.0, 50, 1.5), (-1, 0.7, 50, 1.5), (20, 0.9, 50, 1.5), (1, 0.5, 50, 1.5), (-1, 0.9, 5_000, 0.1)],
)
def test_cuts_keep_what_transformers_keeps(top_k: int, top_p: float, vocabulary: int, spread: float) -> None:
    """The last case needs more candidates than the first look has: a nearly flat distribution."""
    scores = torch.stack([logits(vocabulary, seed, spread) for seed in range(4)])
    expected = TemperatureLogitsWarper(0.8)(None, scores)
    if top_k > 0:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    params = SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p)
    assert torch.equal(Sampler(params, ())._cut(scores / 0.8).isinf(), expected.isinf())


def test_log_probs_are_those_of_the_drawn_token() -> None:
    scores = torch.stack([logits(50, seed) for seed in range(64)])
    tokens, sampled, raw = Sampler(SamplingParams(temperature=0.5, top_k=4), ())(scores, keys(64))
    kept = (scores / 0.5).masked_fill(scores < scores.topk(4).values[:, -1:], -torch.inf)
    torch.testing.assert_close(sampled, kept.log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    torch.testing.assert_close(raw, scores.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(do_sample=False), SamplingParams(top_k=2)]
)
def test_blocked_tokens_are_never_drawn(params: SamplingParams) -> None:
    row = torch.zeros(10)
    row[[2, 4]] = 9.0
    tokens, _, _ = Sampler(params, (2, 4))(row.expand(500, -1), keys(500))
    assert not set(tokens.tolist()) & {2, 4}


def test_temperature_zero_is_greedy() -> None:
    scores = torch.stack([logits(50, seed) for seed in range(8)])
    tokens, _, _ = Sampler(SamplingParams(temperature=0), ())(scores, keys(8))
    assert torch.equal(tokens, scores.argmax(-1))


def test_half_precision_scores_are_drawn_in_single_precision() -> None:
    scores = torch.stack([logits(50, seed) for seed in range(8)]).bfloat16()
    half, single = (Sampler(SamplingParams(), ())(given, keys(8)) for given in (scores, scores.float()))
    for left, right in zip(half, single, strict=True):
        assert torch.equal(left, right)
