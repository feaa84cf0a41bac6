"""Tensor rules: shapes, dtypes, padding sides, masks and positions of shards and rollouts."""

from typing import TYPE_CHECKING, Any

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check, Findings

if TYPE_CHECKING:
    from rl_assets.protocol import DataProto


def _shards(dataset: Dataset) -> Findings:
    limit = dataset.spec.data.max_prompt_length
    findings = Findings({"shards": 0, "rows": 0})
    keys: set[str] | None = None
    for ref, data in dataset.shards("proto_shards"):
        findings.numbers["shards"] = int(findings.numbers["shards"]) + 1
        findings.numbers["rows"] = int(findings.numbers["rows"]) + len(data)
        found = {*data.batch.keys(), *data.non_tensor_batch}
        if keys is not None and found != keys:
            findings.fail(f"{ref.name} has the keys {sorted(found ^ keys)} where others do not")
        keys = found if keys is None else keys
        for name, values in data.non_tensor_batch.items():
            if values.shape != (len(data),) or values.dtype != object:
                findings.fail(
                    f"{ref.name}: `{name}` is {values.dtype} {values.shape}, not object ({len(data)},)"
                )
        for index, ids in enumerate(data.non_tensor_batch["prompt_ids"]):
            if not 0 < len(ids) <= limit:
                findings.fail(f"the prompt has {len(ids)} tokens, the limit is {limit}", _place(data, index))
    return findings


def _rollouts(dataset: Dataset) -> Findings:
    data_spec = dataset.spec.data
    findings = Findings({"rows": 0})
    prompts: dict[str, list[int]] = {}
    for _, data in dataset.shards("proto_shards"):
        prompts.update(zip(data.non_tensor_batch["uid"], data.non_tensor_batch["prompt_ids"], strict=True))
    for ref, data in dataset.shards("rollouts"):
        findings.numbers["rows"] = int(findings.numbers["rows"]) + len(data)
        widths = (data_spec.max_prompt_length, data_spec.max_response_length)
        problems = _shape_problems(data, *widths)
        for problem in problems:
            findings.fail(f"{ref.name}: {problem}")
        if not problems:
            _check_rows(data, prompts, findings)
    return findings


def _shape_problems(data: "DataProto", prompt_length: int, response_length: int) -> list[str]:
    """Tensors that are missing or have another shape or dtype than verl's rollout gives them."""
    import torch

    width = prompt_length + response_length
    expected = {
        "prompts": prompt_length,
        "responses": response_length,
        "response_mask": response_length,
        "input_ids": width,
        "attention_mask": width,
        "position_ids": width,
    }
    problems = []
    for name, columns in expected.items():
        tensor = data.batch.get(name, None)
        if tensor is None:
            problems.append(f"`{name}` is missing")
        elif tensor.shape != (len(data), columns) or tensor.dtype != torch.int64:
            problems.append(
                f"`{name}` is {tensor.dtype} {tuple(tensor.shape)}, not int64 {(len(data), columns)}"
            )
    return problems


def _check_rows(data: "DataProto", prompts: dict[str, list[int]], findings: Findings) -> None:
    """Padding sides, masks, positions, and the prompt, for a whole shard at a time."""
    import torch

    batch, eos = data.batch, torch.as_tensor(data.meta_info["eos_token_id"]).reshape(-1)
    width = batch["prompts"].shape[1]
    prompt_mask, response_mask = batch["attention_mask"][:, :width], batch["attention_mask"][:, width:]
    is_eos = torch.isin(batch["responses"], eos).long()
    through_first_eos = (is_eos.cumsum(-1) - is_eos == 0).long()
    prompt_positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
    response_positions = prompt_positions[:, -1:] + 1 + torch.arange(batch["responses"].shape[1])
    rules = {
        "the prompt is not padded on the left": (prompt_mask.diff(dim=-1) >= 0).all(-1),
        "the response is not padded on the right": (response_mask.diff(dim=-1) <= 0).all(-1),
        "`response_mask` differs from the mask over the response": (
            batch["response_mask"] == response_mask
        ).all(-1),
        "the response goes on after its first EOS": (response_mask <= through_first_eos).all(-1),
        "`input_ids` is not prompts then responses": (
            batch["input_ids"] == torch.cat([batch["prompts"], batch["responses"]], -1)
        ).all(-1),
        "the prompt's positions are not cumsum(mask) - 1": (
            batch["position_ids"][:, :width] == prompt_positions
        ).all(-1),
        "the response's positions do not go on from the prompt's": (
            batch["position_ids"][:, width:] == response_positions
        ).all(-1),
    }
    for problem, holds in rules.items():
        for index in (~holds).nonzero().flatten().tolist():
            findings.fail(problem, _place(data, index))
    for index, uid in enumerate(data.non_tensor_batch["uid"]):
        if batch["prompts"][index][prompt_mask[index].bool()].tolist() != list(prompts.get(uid, [])):
            findings.fail("the prompt is not the one that was measured", _place(data, index))


def _place(data: "DataProto", index: int) -> dict[str, Any]:
    return {key: data.non_tensor_batch[key][index] for key in ("uid", "source_file", "source_row")}


CHECKS = [
    Check(
        "proto_shards",
        "shard_rules",
        "Every shard is whole (its digests match), all shards have the same keys, every field is one value "
        "per row, and no prompt is empty or too long.",
        _shards,
    ),
    Check(
        "rollouts",
        "tensor_rules",
        "Tensors have verl's shapes and dtypes; prompts are padded on the left and equal the measured ids; "
        "responses are padded on the right and end at their first EOS; masks and positions follow.",
        _rollouts,
    ),
]
