"""Sampling parameters: verl's three modes, refusals, and digests that tell what differs."""

import pytest

from rl_assets.errors import InputError
from rl_assets.rollout.params import SamplingParams


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"n": 0}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop": ("",)}, "stop"),
    ],
)
def test_values_that_no_sampler_can_use_are_refused_by_name(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(InputError, match=f"`rollout.{name}`"):
        SamplingParams(**wrong)


def test_greedy_is_no_sampling_or_temperature_zero() -> None:
    assert SamplingParams(do_sample=False).greedy
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams().greedy


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2},
        {"temperature": 0.9},
        {"top_p": 0.9},
        {"top_k": 3},
        {"seed": 1},
        {"stop": "x"},
        {"do_sample": False},
    ],
)
def test_the_digest_tells_what_changes_the_responses(change: dict[str, object]) -> None:
    assert SamplingParams(**change).digest != SamplingParams().digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SamplingParams(top_k=0), SamplingParams(top_k=-1)),
        (SamplingParams(temperature=1), SamplingParams(temperature=1.0)),
        (SamplingParams(do_sample=False, seed=1), SamplingParams(temperature=0, top_p=0.5)),
        (SamplingParams(stop="x"), SamplingParams(stop=("x",))),
    ],
)
def test_parameters_that_sample_alike_share_a_digest(one: SamplingParams, other: SamplingParams) -> None:
    assert one.digest == other.digest
