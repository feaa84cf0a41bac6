"""The decoding loop gives what `generate` gives, whatever the batch, and wastes nothing on the way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rl_assets.errors import InputError
from rl_assets.rollout.cache import _SLACK
from rl_assets.rollout.decode import Decoder
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy
from rl_assets.rollout.positions import token_types
from rl_assets.rollout.requests import Prompt, Response
from tests.rollout import tiny

GREEDY = SamplingParams(do_sample=False)
Made = dict[tuple[str, int], Response]


def prompts(count: int, limit: int, longest: int = 40) -> list[Prompt]:
    return [Prompt(f"uid-{row}", tuple(ids), limit) for row, ids in enumerate(tiny.text_ids(count, longest))]


def decode(
    policy: Policy, asked: Sequence[Prompt], sampling: SamplingParams, rows: int | None = None, **options: Any
) -> Made:
    made: Made = {}

    def keep(prompt: Prompt, index: int, response: Response) -> None:
        assert (prompt.uid, index) not in made, "made twice"
        made[prompt.uid, index] = response

    decoder = Decoder(policy, sampling, max_batch_size=rows, log=options.get("log", lambda _: None))
    decoder.run([(prompt, range(sampling.n)) for prompt in asked], keep)
    assert len(made) == len(asked) * sampling.n
    return made


def generated(policy: Policy, prompt: Prompt) -> list[int]:
    """What transformers' own greedy `generate` answers to a prompt alone."""
    ids = torch.tensor([prompt.ids])
    media = {name: value for name, value in prompt.media.items() if name != "images_seqlens"}
    if media:
        media["mm_token_type_ids"] = token_types(policy, ids)
    output = policy.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=prompt.limit,
        suppress_tokens=list(policy.blocked_token_ids) or None,
        **media,
    )
    return output[0, len(prompt.ids) :].tolist()


@contextmanager
def forwards(policy: Policy) -> Iterator[list[tuple[int, int]]]:
    """The shapes (rows, tokens) of all forward passes made inside."""
    shapes: list[tuple[int, int]] = []

    def note(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        shapes.append(tuple(given["input_ids"].shape))

    hook = policy.model.register_forward_pre_hook(note, with_kwargs=True)
    yield shapes
    hook.remove()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3"])
def test_greedy_equals_generate(tiny_policy: Callable[[str], Policy], kind: str) -> None:
    policy = tiny_policy(kind)
    asked = prompts(9, limit=40)
    made = decode(policy, asked, GREEDY, rows=4)
    assert {response.finish_reason for response in made.values()} == {"stop", "length"} or kind != "llama"
    for prompt in asked:
        assert made[prompt.uid, 0].token_ids == generated(policy, prompt)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_greedy_equals_generate_with_media(tiny_policy: Callable[[str], Policy], kind: str) -> None:
    policy = tiny_policy(kind)
    assert policy.placeholder_token_ids == (tiny.IMAGE, tiny.VIDEO)
    assert {*policy.blocked_token_ids} == {tiny.IMAGE, tiny.VIDEO, tiny.VISION_START, tiny.VISION_END}
    asked = tiny.media_prompts(24, kind)
    made = decode(policy, asked, GREEDY, rows=3)
    for prompt in asked:
        policy.model.model.rope_deltas = None
        assert made[prompt.uid, 0].token_ids == generated(policy, prompt), prompt.uid


def test_media_placeholders_are_never_sampled(tiny_policy: Callable[[str], Policy]) -> None:
    asked = tiny.media_prompts(60, "qwen3_vl")
    made = decode(tiny_policy("qwen3_vl"), asked, SamplingParams(n=8, temperature=50.0))
    tokens = [token for response in made.values() for token in response.token_ids]
    assert len(tokens) > 10 * tiny.VOCAB
    assert not {tiny.IMAGE, tiny.VIDEO, tiny.VISION_START, tiny.VISION_END} & set(tokens)


@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_sampled_responses_and_their_log_probs_do_not_depend_on_the_batch(llama: Policy, rows: int) -> None:
    sampling = SamplingParams(n=3, temperature=0.9, seed=4)
    asked = prompts(8, limit=30)
    alone: Made = {}
    for prompt in asked:
        alone |= decode(llama, [prompt], sampling)
    together = decode(llama, asked[::-1], sampling, rows=rows)
    assert together == alone


def test_one_sample_more_leaves_the_others_as_they_were(llama: Policy) -> None:
    asked = prompts(4, limit=20)
    three, four = (decode(llama, asked, SamplingParams(n=n)) for n in (3, 4))
    assert all(four[key].token_ids == response.token_ids for key, response in three.items())
    assert len({tuple(four["uid-0", index].token_ids) for index in range(4)}) == 4


def test_log_probs_are_those_of_one_pass_over_the_whole_row(llama: Policy) -> None:
    asked = prompts(5, limit=20)
    made = decode(llama, asked, SamplingParams(temperature=0.7), rows=2)
    for prompt in asked:
        response = made[prompt.uid, 0]
        row = torch.tensor([[*prompt.ids, *response.token_ids]])
        logits = llama.model(row).logits[0, len(prompt.ids) - 1 : -1]
        chosen = torch.tensor(response.token_ids)[:, None]
        for scores, found in ((logits, response.raw_log_probs), (logits / 0.7, response.log_probs)):
            expected = scores.log_softmax(-1).gather(1, chosen)[:, 0]
            torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-4)


def test_a_prompt_is_prefilled_once_for_all_its_samples(llama: Policy) -> None:
    asked = prompts(6, limit=10)
    with forwards(llama) as shapes:
        decode(llama, asked, SamplingParams(n=8), rows=16)
    prefilled = [shape for shape in shapes if shape[1] > 1]
    assert sum(rows for rows, _ in prefilled) <= len(asked)


def test_finished_rows_leave_and_waiting_ones_join_at_once(
    llama: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every decoding step makes one token for as many rows as may run, until no row waits."""
    asked = prompts(12, limit=40)
    monkeypatch.setattr(llama, "row_multiple", 1)
    with forwards(llama) as shapes:
        made = decode(llama, asked, GREEDY, rows=4)
    steps = [rows for rows, tokens in shapes if tokens == 1]
    assert sum(steps) == sum(len(response.token_ids) - 1 for response in made.values())
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 4


def test_a_long_run_moves_its_window_back_and_goes_on(llama: Policy) -> None:
    """Rows of other lengths come and go for more steps than the buffer has columns."""
    limits = [200, *range(1, 40)]
    asked = [
        Prompt(f"uid-{row}", tuple(ids), limit)
        for row, (ids, limit) in enumerate(zip(tiny.text_ids(len(limits), 30), limits, strict=True))
    ]
    policy_ends = llama.eos_token_ids
    llama.eos_token_ids = (tiny.VOCAB,)
    try:
        made = decode(llama, asked, GREEDY, rows=2)
        assert sum(len(response.token_ids) for response in made.values()) > 2 * (230 + _SLACK)
        for prompt in asked[:6]:
            assert decode(llama, [prompt], GREEDY)[prompt.uid, 0].token_ids == made[prompt.uid, 0].token_ids
    finally:
        llama.eos_token_ids = policy_ends


def test_every_row_may_have_its_own_limit(llama: Policy) -> None:
    asked = [Prompt(f"uid-{limit}", (9, 10, 11), limit) for limit in (0, 1, 2, 17)]
    made = decode(llama, asked, SamplingParams(temperature=3.0))
    longest = made["uid-17", 0]
    for prompt in asked:
        response = made[prompt.uid, 0]
        assert len(response.token_ids) <= prompt.limit
        if len(response.token_ids) < prompt.limit:
            assert response.finish_reason == "stop"
    assert made["uid-0", 0] == Response([], [], [], "length")
    assert longest.token_ids[-1] == tiny.EOS or longest.finish_reason == "length"


class Letters:
    """A tokenizer in which token t is the letter ``chr(t)``."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(chr(token) for token in ids)


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(llama: Policy) -> None:
    (prompt,) = prompts(1, limit=60)
    whole = decode(llama, [prompt], SamplingParams(seed=3))[prompt.uid, 0].token_ids
    llama.tokenizer = Letters()
    try:
        stop = Letters().decode(whole[10:13])
        cut = decode(llama, [prompt], SamplingParams(seed=3, stop=("never seen", stop)))[prompt.uid, 0]
    finally:
        del llama.tokenizer
    end = Letters().decode(whole).index(stop) + 3
    assert cut.token_ids == whole[:end]
    assert cut.finish_reason == "stop"


@contextmanager
def memory_for(policy: Policy, rows: int, tokens: int) -> Iterator[None]:
    """A model that runs out of memory on more than so many rows or tokens in one pass."""

    def check(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        if given["input_ids"].shape[0] > rows or given["input_ids"].numel() > tokens:
            raise torch.OutOfMemoryError("too much")

    hook = policy.model.register_forward_pre_hook(check, with_kwargs=True)
    yield
    hook.remove()


def test_out_of_memory_halves_the_batch_and_loses_nothing(llama: Policy) -> None:
    asked, sampling = prompts(8, limit=30), SamplingParams(n=4)
    undisturbed = decode(llama, asked, sampling)
    said: list[str] = []
    with memory_for(llama, rows=5, tokens=70), forwards(llama) as shapes:
        made = decode(llama, asked, sampling, rows=32, log=said.append)
    assert {key: r.token_ids for key, r in made.items()} == {
        key: r.token_ids for key, r in undisturbed.items()
    }
    assert "at most 4 rows" in said[-1]
    # A row's tokens outlive the loss of its cache: no token is drawn again.
    drawn = sum(rows for rows, tokens in shapes if tokens == 1)
    assert drawn <= sum(len(response.token_ids) for response in made.values()) + 64


def test_too_little_memory_for_one_row_is_an_error_that_says_so(llama: Policy) -> None:
    with memory_for(llama, rows=0, tokens=0), pytest.raises(InputError, match="too little memory"):
        decode(llama, prompts(3, limit=5), GREEDY)
