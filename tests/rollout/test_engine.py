"""A batch of prompts becomes a batch of responses: what comes along, what is refused, what is said."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_assets.errors import InputError
from rl_assets.protocol.dataproto import DataProto
from rl_assets.rollout.cache import BatchCache
from rl_assets.rollout.decode import PlainDecoder
from rl_assets.rollout.engine import RolloutStats, generate_rollouts
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy, load_policy
from tests.rollout import tiny

IDS = tiny.text_ids(7, 20)


def roll_out(policy: Policy, prompts: DataProto, sampling: SamplingParams, **options: Any) -> DataProto:
    settings = {"prompt_length": 24, "response_length": 16, "log": lambda _: None, **options}
    return generate_rollouts(policy, prompts, sampling, **settings)


def test_every_prompt_comes_back_n_times_with_all_it_brought(llama: Policy) -> None:
    prompts = tiny.batch(
        IDS,
        data_source=[f"source-{row % 2}" for row in range(7)],
        reward_model=[{"style": "rule", "ground_truth": str(row)} for row in range(7)],
        extra_info=[{"index": row, "tags": ["a"]} for row in range(7)],
        raw_prompt=[[{"role": "user", "content": str(row)}] for row in range(7)],
    )
    prompts.meta_info["split"] = "train"
    rollouts = roll_out(llama, prompts, SamplingParams(n=3, seed=9))
    assert len(rollouts) == 21
    for name, values in prompts.non_tensor_batch.items():
        assert rollouts.non_tensor_batch[name].tolist() == [value for value in values for _ in range(3)]
    assert rollouts.non_tensor_batch["sample_index"].tolist() == [0, 1, 2] * 7
    lengths = rollouts.batch["response_mask"].sum(-1)
    assert rollouts.non_tensor_batch["response_length"].tolist() == lengths.tolist()
    assert set(rollouts.non_tensor_batch["finish_reason"]) <= {"stop", "length"}
    assert rollouts.meta_info["split"] == "train"
    assert rollouts.meta_info["eos_token_id"] == [tiny.EOS]
    assert rollouts.meta_info["pad_token_id"] == 0
    assert rollouts.meta_info["sampling"] == SamplingParams(n=3, seed=9).as_dict()
    assert rollouts.meta_info["policy_fingerprint"] == llama.fingerprint


def test_a_scorer_may_write_to_one_row_without_touching_its_siblings(llama: Policy) -> None:
    prompts = tiny.batch(IDS[:1], extra_info=[{"seen": [], "nested": {"x": 1}}])
    rollouts = roll_out(llama, prompts, SamplingParams(n=2))
    first, second = rollouts.non_tensor_batch["extra_info"]
    first["seen"].append("mine")
    first["nested"]["x"] = 2
    assert second == prompts.non_tensor_batch["extra_info"][0] == {"seen": [], "nested": {"x": 1}}


def test_responses_belong_to_their_uid_whatever_the_order(llama: Policy) -> None:
    prompts = tiny.batch(IDS)
    order = [4, 0, 6, 2, 5, 1, 3]
    shuffled = prompts.select_idxs(order)
    one, other = (
        roll_out(llama, given, SamplingParams(n=2), max_batch_size=3) for given in (prompts, shuffled)
    )
    at = [2 * row + sample for row in order for sample in range(2)]
    assert torch.equal(one.batch["responses"][at], other.batch["responses"])
    assert one.non_tensor_batch["uid"][at].tolist() == other.non_tensor_batch["uid"].tolist()


def test_shards_give_what_the_whole_gives(llama: Policy) -> None:
    prompts = tiny.batch(IDS)
    whole = roll_out(llama, prompts, SamplingParams(n=2))
    parts = [
        roll_out(llama, prompts.select_idxs(at), SamplingParams(n=2)) for at in ([0, 1, 2], [3], [4, 5, 6])
    ]
    assert torch.equal(DataProto.concat(parts).batch["responses"], whole.batch["responses"])


def test_samples_follow_the_models_own_distribution(llama: Policy) -> None:
    """Chi-square of the first token of many samples, and of the second one after the likeliest first."""
    draws = 6_000
    prompts = tiny.batch([[9, 40, 77]])
    rollouts = roll_out(llama, prompts, SamplingParams(n=draws), response_length=2)
    responses = rollouts.batch["responses"]
    first = responses[:, 0]
    likeliest = int(first.bincount().argmax())
    second = responses[first == likeliest, 1]
    assert len(second) > 100
    for tokens, context in ((first, [9, 40, 77]), (second, [9, 40, 77, likeliest])):
        probs = llama.model(torch.tensor([context])).logits[0, -1].softmax(-1)
        # Tokens expected less than 5 times are counted together, as the test asks for.
        common = probs * len(tokens) >= 5
        counts = tokens.bincount(minlength=len(probs)).double()
        observed = torch.cat([counts[common], counts[~common].sum()[None]])
        expected = torch.cat([probs[common], probs[~common].sum()[None]]).double() * len(tokens)
        statistic = ((observed - expected) ** 2 / expected).sum().item()
        freedom = len(expected) - 1
        assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4


def without(name: str) -> DataProto:
    prompts = tiny.batch(IDS)
    del prompts.non_tensor_batch[name]
    return prompts


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (lambda: tiny.batch([[9], []]), "0 tokens in the prompt of uid 'uid-1'"),
        (lambda: tiny.batch([[9] * 25]), "25 tokens in the prompt of uid 'uid-0', expected 1 to 24"),
        (lambda: tiny.batch([[9], [9]], uid=["a", "a"]), "'a' 2 times"),
        (lambda: tiny.batch([[9], [9]], uid=["a", None]), "row 1: field `uid`: found None"),
        (lambda: tiny.batch([[9]], uid=[7]), "row 0: field `uid`: found 7"),
        (lambda: without("uid"), "field `uid`: found no such column"),
        (lambda: without("prompt_ids"), "field `prompt_ids`: found no such column"),
        (lambda: tiny.batch([[9], [tiny.VOCAB]]), "outside of the vocabulary of 120 for uid 'uid-1'"),
        (lambda: tiny.batch([[9]], max_new_tokens=[17]), "17 for uid 'uid-0', expected 0 to 16"),
        (lambda: tiny.batch([[9]], max_new_tokens=[-1]), "-1 for uid 'uid-0'"),
    ],
)
def test_a_batch_that_cannot_finish_is_refused_before_a_token_is_made(
    llama: Policy, prompts: Callable[[], DataProto], message: str
) -> None:
    stats = RolloutStats()
    with pytest.raises(InputError, match=re.escape(message)):
        roll_out(llama, prompts(), SamplingParams(), stats=stats)
    assert stats == RolloutStats()


def test_more_tokens_than_the_model_has_positions_for_are_refused(llama: Policy) -> None:
    with pytest.raises(
        InputError, match="3 prompt tokens and up to 254 more for uid 'uid-0', expected at most 256"
    ):
        roll_out(llama, tiny.batch([[9, 9, 9]]), SamplingParams(), response_length=254)


def test_a_limit_beyond_the_response_length_is_refused(llama: Policy) -> None:
    with pytest.raises(
        InputError, match=r"`rollout\.max_new_tokens`: found 17, expected at most the response"
    ):
        roll_out(llama, tiny.batch([[9]]), SamplingParams(max_new_tokens=17))


def test_rows_may_have_limits_of_their_own(llama: Policy) -> None:
    rollouts = roll_out(
        llama, tiny.batch(IDS[:3], max_new_tokens=[0, 2, None]), SamplingParams(max_new_tokens=5, seed=1)
    )
    assert (rollouts.non_tensor_batch["response_length"] <= np.array([0, 2, 5])).all()
    assert rollouts.batch["response_mask"][0].sum() == 0
    assert (rollouts.batch["responses"][0] == llama.pad_token_id).all()


def test_no_prompts_give_no_responses(llama: Policy) -> None:
    rollouts = roll_out(llama, tiny.batch([]), SamplingParams(n=2))
    assert rollouts.batch["responses"].shape == (0, 16)
    assert rollouts.batch["position_ids"].shape == (0, 40)


def test_what_was_done_is_counted_and_said(llama: Policy) -> None:
    said: list[str] = []
    stats = RolloutStats()
    rollouts = roll_out(llama, tiny.batch(IDS), SamplingParams(n=2), log=said.append, stats=stats)
    cut = sum(rollouts.non_tensor_batch["finish_reason"] == "length")
    assert (stats.responses, stats.reused, stats.truncated) == (14, 0, cut)
    assert stats.truncated_share == cut / 14
    assert stats.generated_tokens == rollouts.batch["response_mask"].sum()
    assert stats.tokens_per_second == stats.generated_tokens / stats.seconds
    assert stats.peak_memory > 2**26
    assert re.fullmatch(
        rf"rollouts: 14 of 14 responses, {stats.generated_tokens} tokens at [\d,]+ tokens/s, "
        r"\d+% cut at the limit, 0 taken from the journal, took 0:\d\d",
        said[-1],
    )
    roll_out(llama, tiny.batch(IDS), SamplingParams(n=2), stats=stats)
    assert stats.responses == 28


def test_the_first_response_is_checked_against_a_plain_forward_pass(llama_folder: Path) -> None:
    said: list[str] = []
    with load_policy(llama_folder) as policy:
        roll_out(policy, tiny.batch(IDS), SamplingParams(), log=said.append)
        roll_out(policy, tiny.batch(IDS), SamplingParams(), log=said.append)
    assert sum("agrees with a plain forward pass" in line for line in said) == 1


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_the_check_holds_with_media(tmp_path: Path, kind: str) -> None:
    asked = tiny.media_prompts(8, kind)
    prompts = tiny.batch(
        [prompt.ids for prompt in asked], multi_modal_inputs=[dict(prompt.media) for prompt in asked]
    )
    with load_policy(tiny.save(kind, tmp_path / kind)) as policy:
        for row in range(len(asked)):
            policy.verified = False
            rollouts = roll_out(policy, prompts.select_idxs([row]), SamplingParams(n=2))
            assert policy.verified
            assert rollouts.batch["position_ids"].shape == (2, 4, 40)


@pytest.mark.parametrize(
    ("ids", "media"),
    [([9, tiny.IMAGE, 9], {}), ([9, 9, 9], tiny.image((1, 4, 4)))],
    ids=["no media", "no place"],
)
def test_placeholders_without_media_and_media_without_placeholders_are_refused(
    tiny_policy: Callable[[str], Policy], ids: list[int], media: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(InputError, match=r"for uid 'uid-0', whose prompt has [01] media placeholders"):
        roll_out(tiny_policy("qwen3_vl"), tiny.batch([ids], multi_modal_inputs=[media]), SamplingParams())


@pytest.mark.parametrize("kind", ["llama", "qwen2_5_vl", "qwen3_vl"])
def test_where_the_loop_disagrees_with_the_model_tokens_come_from_plain_passes(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that hides all but a row's newest token while it decodes."""
    folder = tiny.save(kind, tmp_path / kind)
    asked = [*tiny.media_prompts(8, kind)] if "vl" in kind else []
    prompts = tiny.batch(
        [*IDS, *(prompt.ids for prompt in asked)],
        multi_modal_inputs=[*({} for _ in IDS), *(dict(prompt.media) for prompt in asked)],
        max_new_tokens=[0, *[12] * (len(IDS) + len(asked) - 1)],
    )
    with load_policy(folder, device="cpu") as policy:
        right = roll_out(policy, prompts, SamplingParams(n=2))
    mask = BatchCache.mask
    monkeypatch.setattr(BatchCache, "mask", lambda self, rows: mask(self, rows) * newest(self))

    def newest(cache: BatchCache) -> torch.Tensor:
        width = mask(cache).shape[1]
        return (torch.arange(width) == width - 1).long()

    said: list[str] = []
    stats = RolloutStats()
    with load_policy(folder, device="cpu") as policy:
        for _ in range(2):
            plain = roll_out(policy, prompts, SamplingParams(n=2), log=said.append, stats=stats)
            assert torch.equal(plain.batch["responses"], right.batch["responses"])
            torch.testing.assert_close(
                plain.batch["rollout_log_probs"], right.batch["rollout_log_probs"], rtol=1e-4, atol=1e-4
            )
    assert stats.responses == 2 * 2 * len(prompts)
    (warning,) = [line for line in said if "WARNING" in line]
    assert "apart per token, so every token comes from a plain pass over its row now" in warning


def test_plain_passes_survive_a_lack_of_memory(llama: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    right = roll_out(llama, tiny.batch(IDS), SamplingParams(n=3))
    monkeypatch.setattr(llama, "plain", True)
    forward = PlainDecoder._forward

    def scarce(self: PlainDecoder, ids: torch.Tensor, *args: Any, **media: Any) -> torch.Tensor:
        if ids.shape[0] > 1 and ids.shape[1] > 12:
            raise torch.OutOfMemoryError("too many rows")
        return forward(self, ids, *args, **media)

    monkeypatch.setattr(PlainDecoder, "_forward", scarce)
    plain = roll_out(llama, tiny.batch(IDS), SamplingParams(n=3))
    assert torch.equal(plain.batch["responses"], right.batch["responses"])


def test_the_demo_policy_answers_as_generate_does(policy: Path) -> None:
    with load_policy(policy, device="cpu") as loaded:
        texts = [
            "What is 12 + 30?",
            "Name three primary colours.",
            "Say hello to the reader of this sentence.",
        ]
        ids = [
            loaded.tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
            for text in texts
        ]
        rollouts = roll_out(
            loaded, tiny.batch(ids), SamplingParams(do_sample=False), prompt_length=32, response_length=8
        )
        for row, prompt in enumerate(ids):
            output = loaded.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt)),
                do_sample=False,
                max_new_tokens=8,
            )
            length = rollouts.non_tensor_batch["response_length"][row]
            assert rollouts.batch["responses"][row, :length].tolist() == output[0, len(prompt) :].tolist()
