"""The tensors of a rollout keep verl's rules: shapes, dtypes, padding sides, masks, positions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.rollout.policy import Policy
from rl_assets.rollout.requests import Prompt, Response
from rl_assets.rollout.tensors import rollout_tensors
from tests.rollout import tiny

P, R = 9, 6
TOKENS = st.integers(0, tiny.VOCAB - 1)


def response(ids: list[int]) -> Response:
    return Response(ids, [-0.5] * len(ids), [-1.5] * len(ids), "stop" if tiny.EOS in ids else "length")


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Prompt], list[list[Response]]]:
    n = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(TOKENS, min_size=1, max_size=P), min_size=1, max_size=4))
    prompts = [Prompt(f"uid-{row}", tuple(ids), R) for row, ids in enumerate(rows)]
    ids = st.lists(TOKENS, max_size=R)
    return prompts, [[response(draw(ids)) for _ in range(n)] for _ in prompts]


@given(made=groups())
@settings(max_examples=60, deadline=None)
def test_the_rules_hold_for_any_tokens(
    llama: Policy, made: tuple[list[Prompt], list[list[Response]]]
) -> None:
    prompts, responses = made
    tensors = rollout_tensors(llama, prompts, responses, P, R)
    n = len(responses[0])
    rows = len(prompts) * n
    for name, width in {
        "prompts": P,
        "responses": R,
        "response_mask": R,
        "input_ids": P + R,
        "attention_mask": P + R,
        "position_ids": P + R,
    }.items():
        assert tensors[name].shape == (rows, width), name
        assert tensors[name].dtype == torch.int64, name
    for name in ("rollout_log_probs", "raw_log_probs"):
        assert (tensors[name].shape, tensors[name].dtype) == ((rows, R), torch.float32)
    for row in range(rows):
        prompt, made_here = prompts[row // n].ids, responses[row // n][row % n]
        length, pads = len(made_here.token_ids), P - len(prompt)
        assert tensors["prompts"][row].tolist() == [llama.pad_token_id] * pads + list(prompt)
        assert tensors["responses"][row].tolist() == made_here.token_ids + [llama.pad_token_id] * (R - length)
        assert tensors["response_mask"][row].tolist() == [1] * length + [0] * (R - length)
        assert tensors["rollout_log_probs"][row].tolist() == [-0.5] * length + [0.0] * (R - length)
        assert tensors["raw_log_probs"][row].tolist() == [-1.5] * length + [0.0] * (R - length)
        assert tensors["position_ids"][row].tolist() == [0] * pads + list(range(len(prompt) + R))
    assert torch.equal(tensors["input_ids"], torch.cat([tensors["prompts"], tensors["responses"]], 1))
    assert torch.equal(tensors["attention_mask"][:, P:], tensors["response_mask"])
    assert (
        tensors["attention_mask"][:, :P].sum(-1)
        == torch.tensor([len(p.ids) for p in prompts for _ in range(n)])
    ).all()


def test_a_pad_token_that_is_an_eos_token_still_ends_the_response_once(llama: Policy) -> None:
    policy = replace(llama, pad_token_id=tiny.EOS)
    tensors = rollout_tensors(policy, [Prompt("u", (9,), R)], [[response([7, 8, tiny.EOS])]], P, R)
    assert tensors["responses"][0].tolist() == [7, 8, tiny.EOS, tiny.EOS, tiny.EOS, tiny.EOS]
    assert tensors["response_mask"][0].tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_multimodal_positions_have_four_rows(tiny_policy: Callable[[str], Policy], kind: str) -> None:
    policy = tiny_policy(kind)
    image = Prompt("image", (11, 12, 112, 110, 110, 110, 110, 113, 13), 4, tiny.image((1, 4, 4)))
    text = Prompt("text", (11, 12, 13), 4)
    tensors = rollout_tensors(policy, [image, text], [[response([7])], [response([8])]], 10, 4)
    positions = tensors["position_ids"]
    assert positions.shape == (2, 4, 14)
    assert positions.dtype == torch.int64
    with_image = [
        [1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        [0, 0, 1, 2, 3, 3, 3, 3, 5, 6, 7, 8, 9, 10],
        [0, 0, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10],
        [0, 0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9, 10],
    ]
    assert positions[0].tolist() == with_image
    assert positions[1].tolist() == [[1] * 7 + list(range(7))] + [[0] * 7 + list(range(7))] * 3
