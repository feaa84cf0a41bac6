"""What the real verl makes of our reward inputs, scorers and training set. Run in a process that has verl."""

import asyncio
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager as LoopDAPO
from verl.experimental.reward_loop.reward_manager.gdpo import GDPORewardManager as LoopGDPO
from verl.experimental.reward_loop.reward_manager.limited import RateLimitedRewardManager as LoopLimited
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager as LoopNaive
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.reward_score import default_compute_score, math_dapo, math_reward
from verl.workers.reward_manager.batch import BatchRewardManager
from verl.workers.reward_manager.dapo import DAPORewardManager
from verl.workers.reward_manager.naive import NaiveRewardManager
from verl.workers.reward_manager.prime import PrimeRewardManager

from rl_assets.base.tables import TableWriter
from rl_assets.media.source import MediaSource
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import write_shard
from rl_assets.protocol.verl import to_verl
from rl_assets.rewards.builtin import compute_score, perfect_answer
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.inputs import build_reward_inputs, reward_batch
from rl_assets.rewards.math_value import math_equal
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.scoring import score_table
from rl_assets.rewards.verl_text import dapo_text, last_boxed, math_same, math_text
from rl_assets.trainset.curate import Selection, curate, read_prompts
from rl_assets.trainset.export import write_export
from rl_assets.trainset.media import MediaWriter

POLICY = Path(__file__).parents[2] / "data/policies/SmolLM2-135M-Instruct"
PROMPT_WIDTH, RESPONSE_WIDTH = 8, 24

# data_source, response, ground truth
SAMPLES = [
    ("openai/gsm8k", "so #### 72", "72"),
    ("openai/gsm8k", "#### 1,000", "1000"),
    ("openai/gsm8k", "#### 71", "72"),
    ("math_dapo", "Answer: 34", "34"),
    ("aime24", "I do not know", "33"),
    ("lighteval/MATH", r"\boxed{\frac{1}{2}}", r"\frac12"),
    ("math_dapo", "Answer: 35", "34"),
    ("searchR1_nq", "<answer>the beatles</answer>", {"target": ["The Beatles", "Beatles"]}),
    ("searchR1_nq", "", {"target": "Beatles"}),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POLICY)


def rollout(tokenizer: Any) -> DataProto:
    """A rollout shard with one response for each sample, padded as the engine pads."""
    rows = [_padded(tokenizer, solution) for _, solution, _ in SAMPLES]
    info = {"index": 0}  # shared by all rows, as siblings share theirs
    return DataProto.from_dict(
        tensors={key: torch.tensor([row[key] for row in rows]) for key in rows[0]},
        non_tensors={
            "uid": [f"{n:032x}" for n in range(len(rows))],
            "data_source": [source for source, _, _ in SAMPLES],
            "reward_model": [{"style": "rule", "ground_truth": truth} for _, _, truth in SAMPLES],
            "extra_info": [info] * len(rows),
            "raw_prompt": [[{"role": "user", "content": "?"}]] * len(rows),
            "sample_index": [0] * len(rows),
            "split": ["train"] * len(rows),
            "finish_reason": ["stop"] * len(rows),
            "source_file": ["t.jsonl"] * len(rows),
            "source_row": list(range(len(rows))),
        },
    )


def _padded(tokenizer: Any, solution: str) -> dict[str, list[int]]:
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    prompt = tokenizer("Question?")["input_ids"]
    response = [*tokenizer(solution)["input_ids"], eos]
    before, after = PROMPT_WIDTH - len(prompt), RESPONSE_WIDTH - len(response)
    return {
        "prompts": [pad] * before + prompt,
        "responses": response + [pad] * after,
        "attention_mask": [0] * before + [1] * (len(prompt) + len(response)) + [0] * after,
    }


def by_hand(scorer: Any) -> list[float]:
    results = [scorer(source, solution, truth, {}) for source, solution, truth in SAMPLES]
    return [result["score"] if isinstance(result, dict) else result for result in results]


def places(data: Any) -> torch.Tensor:
    """Column of each row's last token."""
    return data.batch["attention_mask"][:, PROMPT_WIDTH:].sum(-1) - 1


@pytest.mark.parametrize("scorer", [compute_score, default_compute_score], ids=["ours", "verl's"])
@pytest.mark.parametrize("manager", [NaiveRewardManager, DAPORewardManager], ids=["naive", "dapo"])
def test_legacy_managers_give_the_scores_that_the_scorer_gives(
    tokenizer: Any, manager: Any, scorer: Any
) -> None:
    data = to_verl(reward_batch(rollout(tokenizer)))
    result = manager(tokenizer, num_examine=0, compute_score=scorer)(data, return_dict=True)
    rewards = result["reward_tensor"]
    assert rewards[torch.arange(len(data)), places(data)].tolist() == by_hand(scorer)
    assert rewards.count_nonzero() == sum(score != 0 for score in by_hand(scorer))


@pytest.mark.parametrize("manager", [BatchRewardManager, PrimeRewardManager], ids=["batch", "prime"])
def test_managers_of_batches_give_the_scores_that_our_scorer_gives(tokenizer: Any, manager: Any) -> None:
    data = to_verl(reward_batch(rollout(tokenizer)))
    rewards = manager(tokenizer, num_examine=0, compute_score=compute_score)(data)
    assert rewards[torch.arange(len(data)), places(data)].tolist() == by_hand(compute_score)
    assert by_hand(compute_score)[:3] == [1.0, 1.0, 0.0]
    assert -1.0 in by_hand(compute_score)


@pytest.mark.parametrize("scorer", [compute_score, default_compute_score], ids=["ours", "verl's"])
@pytest.mark.parametrize(
    "manager", [LoopNaive, LoopDAPO, LoopGDPO, LoopLimited], ids=["naive", "dapo", "gdpo", "limited"]
)
def test_reward_loop_managers_give_the_scores_that_the_scorer_gives(
    tokenizer: Any, manager: Any, scorer: Any
) -> None:
    data = to_verl(reward_batch(rollout(tokenizer)))

    async def scores() -> list[float]:
        config = OmegaConf.create({"reward": {}, "trainer": {"experiment_name": "test"}})
        if hasattr(manager, "init_class"):
            manager.init_class(config, tokenizer)
        loop_manager = manager(config, tokenizer, scorer)
        return [(await loop_manager.run_single(data[i : i + 1]))["reward_score"] for i in range(len(data))]

    assert asyncio.run(scores()) == by_hand(scorer)


def test_the_overlong_penalty_of_dapo_sees_the_lengths(tokenizer: Any) -> None:
    data = to_verl(reward_batch(rollout(tokenizer)))
    buffer = OmegaConf.create({"enable": True, "len": 20, "penalty_factor": 1.0, "log": False})
    manager = DAPORewardManager(
        tokenizer, 0, compute_score, max_resp_len=RESPONSE_WIDTH, overlong_buffer_cfg=buffer
    )
    lengths = places(data) + 1
    penalties = (-(lengths - (RESPONSE_WIDTH - 20)) / 20).clamp(max=0)
    rewards = manager(data)[torch.arange(len(data)), places(data)]
    assert torch.allclose(rewards, torch.tensor(by_hand(compute_score)) + penalties)


def test_a_mixed_batch_has_the_same_extra_keys_in_every_row(tokenizer: Any) -> None:
    data = to_verl(reward_batch(rollout(tokenizer)))
    result = NaiveRewardManager(tokenizer, 0, compute_score)(data, return_dict=True)
    assert {key: len(values) for key, values in result["reward_extra_info"].items()} == {
        "score": len(SAMPLES),
        "acc": len(SAMPLES),
        "pred": len(SAMPLES),
        "lenient_acc": len(SAMPLES),
    }


def test_what_a_manager_writes_reaches_no_other_row_and_not_the_shard(tokenizer: Any) -> None:
    shard = rollout(tokenizer)
    data = to_verl(reward_batch(shard))
    infos = data.non_tensor_batch["extra_info"]
    NaiveRewardManager(tokenizer, 0, compute_score)(data)
    assert len({id(info) for info in infos}) == len(infos)
    assert "num_turns" in infos[0]
    assert shard.non_tensor_batch["extra_info"][0] == {"index": 0}


def test_a_rollout_joins_with_its_prompts_after_it_was_scored(tokenizer: Any) -> None:
    shard = rollout(tokenizer)
    columns = ("data_source", "reward_model", "extra_info")
    one = DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(1, 1)},
        non_tensors={key: shard.non_tensor_batch[key][:1] for key in columns},
    )
    prompts = one.repeat(len(SAMPLES))
    shard.non_tensor_batch.update(prompts.non_tensor_batch)
    NaiveRewardManager(tokenizer, 0, compute_score)(to_verl(shard))
    batch = to_verl(prompts).union(to_verl(shard))
    assert len(batch) == len(SAMPLES)
    assert list(batch.non_tensor_batch["extra_info"]) == [{"index": 0}] * len(SAMPLES)


def test_the_table_of_scores_says_what_the_managers_say(tokenizer: Any, tmp_path: Path) -> None:
    ref = write_shard(tmp_path / "rollouts", "train-00000-of-00001", rollout(tokenizer))
    inputs = build_reward_inputs(
        ShardManifest(shards=[ref]), tmp_path / "rollouts", tokenizer, folder=tmp_path, log=print
    )
    rows = list(inputs.rows())
    assert [row["solution_str"] for row in rows] == [solution for _, solution, _ in SAMPLES]
    assert [json.loads(row["ground_truth"]) for row in rows] == [truth for _, _, truth in SAMPLES]
    table = score_table(inputs, ScorePool(RewardFunction(), workers=1), folder=tmp_path, log=print)
    assert table.read(["score"]).column(0).to_pylist() == by_hand(compute_score)


TRUTHS = {
    "openai/gsm8k": st.integers(-999, 9999).map(str),
    "math_dapo": st.integers(-999, 9999).map(str),
    "lighteval/MATH": st.integers(-999, 9999).map(str),
    "searchR1_nq": st.lists(st.text("abc the!", min_size=1), min_size=1).map(lambda texts: {"target": texts}),
}
NOISE = st.text("#0123456789., -answer<>/\\boxed{}\n", max_size=400)


@pytest.mark.parametrize("source", TRUTHS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_built_in_scorers_agree_with_verls(source: str, data: st.DataObject) -> None:
    truth = data.draw(TRUTHS[source])
    other = data.draw(TRUTHS[source])
    answer = perfect_answer(source, data.draw(st.sampled_from([truth, other])))
    solution = data.draw(NOISE) + data.draw(st.sampled_from(["", " ", "\n"])) + answer
    random.seed(2)  # verl's searchR1 scorer prints by chance
    theirs = default_compute_score(source, solution, truth)
    assert compute_score(source, solution, truth)["score"] == (
        theirs["score"] if isinstance(theirs, dict) else theirs
    )


def gated_row(number: int, prompt: Any, truth: Any, info: Any, own: Any) -> dict[str, Any]:
    """A row of the length gate."""
    return {
        "uid": f"{number:032x}",
        "split": "train",
        "source_file": "t.jsonl",
        "source_row": number,
        "data_source": "openai/gsm8k",
        "prompt": json.dumps(prompt),
        "reward_model": json.dumps({"style": "rule", "ground_truth": truth}),
        "extra_info": json.dumps(info),
        "extra_columns": json.dumps(own),
        "prompt_ids": [1],
        "prompt_length": 1,
    }


def items(tokenizer: Any, folder: Path, rows: list[dict[str, Any]], **config: Any) -> list[dict[str, Any]]:
    """The items that verl makes of a training set of these rows."""
    with TableWriter(folder / "rows.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(rows)
    curated = curate(read_prompts(writer.table), Selection(), {})
    media = MediaWriter(MediaSource(folder))
    write_export(writer.table, curated, media=media, parameters={}, folder=folder)
    options = OmegaConf.create({"max_prompt_length": 96, "cache_dir": str(folder), **config})
    dataset = RLHFDataset(str(folder / "train.parquet"), tokenizer, options)
    return [dataset[number] for number in range(len(dataset))]


TEX = r"""
\boxed{ \boxed \fbox{ \frac \dfrac tfrac \sqrt \left \right \text{ \text{and} \mbox \textbf{ \overline{ \!
\\ \% \\% \$ $ \circ ^{\circ} ^\circ { } {} ( ) . , = / ^ - + | 0.5 .5 0. 12 3 1/2 3/4 -1/2 01/2 x k= a an
Answer: answer Answer : square ways units cm degrees dollars \mathrm{th} {,} " \; ,\! \dots 1,000 ² \text{m}
\text{}^2 [INVALID] .$
"""
PIECES = [*TEX.split(), " ", "\n", "\\text{ cm}", "\\boxed ", "Answer: ", "#### ", "a ", "\\text{\n}", "\\ "]
SOUP = st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), max_size=12).map("".join)


@settings(max_examples=1000, deadline=None)
@given(SOUP, SOUP)
def test_answers_are_compared_by_text_as_verl_compares_them(one: str, other: str) -> None:
    assert math_same(one, other) is math_reward.is_equiv(one, other)
    assert math_same(one, one) is math_reward.is_equiv(one, one)
    try:
        theirs: str | None = math_reward.strip_string(one)
    except Exception:
        theirs = None
    try:
        ours: str | None = math_text(one)
    except (ValueError, IndexError):
        ours = None
    assert ours == theirs
    assert dapo_text(one) == math_dapo.normalize_final_answer(one)


@settings(max_examples=400, deadline=None)
@given(
    SOUP, SOUP.filter(lambda text: text.strip() != ""), st.sampled_from(["{}", "\\boxed{{{}}}", "Answer: {}"])
)
def test_what_verl_takes_for_right_is_right_and_nothing_else_but_by_value(
    before: str, truth: str, form: str
) -> None:
    for solution in (before + form.format(truth), before, form.format(truth) + before):
        for source in ("lighteval/MATH", "math_dapo", "openai/gsm8k"):
            theirs = default_compute_score(source, solution, truth)
            theirs = theirs["score"] if isinstance(theirs, dict) else theirs
            ours = compute_score(source, solution, truth)
            if theirs == 1.0 or source == "openai/gsm8k":
                assert ours["score"] == theirs
            elif ours["score"] == 1.0:
                assert math_equal(last_boxed(ours["pred"]) or ours["pred"], truth)
            else:
                assert ours["score"] == theirs


def test_verl_loads_the_training_set_whole(tokenizer: Any, tmp_path: Path) -> None:
    infos = [
        {"index": 0, "tools_kwargs": {"search": {"k": 3}}},
        {"index": 1, "tools_kwargs": {"calc": {}}},
        {"index": 2},
    ]
    truths = ["72", {"target": ["a"]}, 0.7379569346398113]
    prompts = [[{"role": "user", "content": f"What is {n}?"}] for n in range(3)]
    rows = [gated_row(n, prompts[n], truths[n], infos[n], {}) for n in range(3)]
    made = items(tokenizer, tmp_path, rows, filter_overlong_prompts=True)
    assert [item["extra_info"] for item in made] == infos
    assert [item["tools_kwargs"] for item in made] == [info.get("tools_kwargs", {}) for info in infos]
    assert [item["reward_model"]["ground_truth"] for item in made] == truths
    assert [item["raw_prompt"] for item in made] == prompts
    assert [item["uid"] for item in made] == [f"{n:032x}" for n in range(3)]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NUMBERS = (
    st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x == 0 or abs(x) >= 1e-305)
    | st.floats(0, 1).filter(lambda x: x == 0 or x >= 1e-305)
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("user"), "content": TEXT}, optional={"tool_calls": st.lists(OBJECTS, max_size=2)}
)
OWN = st.dictionaries(st.sampled_from(["tools", "level", "own column"]), JSON)
ROWS = st.tuples(st.lists(MESSAGES, min_size=1, max_size=2), JSON, OBJECTS, OWN)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_verl_gives_every_json_value_back(tokenizer: Any, rows: list[Any]) -> None:
    prompts = [[*prompt, {"role": "user", "content": str(n)}] for n, (prompt, *_) in enumerate(rows)]
    gated = [gated_row(n, prompts[n], *row[1:]) for n, row in enumerate(rows)]
    with TemporaryDirectory() as folder:
        made = items(tokenizer, Path(folder), gated, filter_overlong_prompts=False)
        batch = collate_fn(made)
    columns = {name for *_, own in rows for name in own}
    for n, (prompt, (_, truth, info, own)) in enumerate(zip(prompts, rows, strict=True)):
        due = {
            "raw_prompt": prompt,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": info,
            **{name: own.get(name) for name in columns},
        }
        found = {name: batch[name][n] for name in due}
        # As text: 1 == 1.0 == True, and the order of keys is that in which a template writes them.
        assert json.dumps(found) == json.dumps(due)
