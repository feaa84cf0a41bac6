"""Tensor rules: shapes, dtypes, padding sides, masks and positions of shards and rollouts."""

from typing import TYPE_CHECKING

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings, place
from rl_assets.graph.dataset import GraphDataset

_ROUNDING = 1e-3
"""A log-probability is at most 0, but for the rounding of a sum over the vocabulary."""

if TYPE_CHECKING:
    import torch

    from rl_assets.protocol.dataproto import DataProto


def _shards(dataset: GraphDataset) -> Findings:
    limit = dataset.spec.data.max_prompt_length
    findings = Findings({"shards": 0, "rows": 0})
    keys: set[str] | None = None
    for ref, data in dataset.shards("proto_shards"):
        findings.count("shards", 1)
        findings.count("rows", len(data))
        found = {*data.batch.keys(), *data.non_tensor_batch}
        with findings.shard(ref.name, len(data)) as line:
            if keys is not None and found != keys:
                findings.fail(f"{ref.name} has the keys {sorted(found ^ keys)} where others do not")
            for name, values in data.non_tensor_batch.items():
                if values.shape != (len(data),) or values.dtype != object:
                    findings.fail(
                        f"{ref.name}: `{name}` is {values.dtype} {values.shape}, not object ({len(data)},)"
                    )
            lengths = [len(ids) for ids in data.non_tensor_batch["prompt_ids"]]
            for index, length in enumerate(lengths):
                if not 0 < length <= limit:
                    findings.fail(f"the prompt has {length} tokens, the limit is {limit}", place(data, index))
            line["longest_prompt"] = max(lengths, default=0)
        keys = found if keys is None else keys
    return findings


def _rollouts(dataset: GraphDataset) -> Findings:
    data_spec = dataset.spec.data
    findings = Findings({"rows": 0})
    prompts: dict[str, list[int]] = {}
    for _, data in dataset.shards("proto_shards"):
        prompts.update(zip(data.non_tensor_batch["uid"], data.non_tensor_batch["prompt_ids"], strict=True))
    for ref, data in dataset.shards("rollouts"):
        findings.count("rows", len(data))
        widths = (data_spec.max_prompt_length, data_spec.max_response_length)
        with findings.shard(ref.name, len(data)) as line:
            problems = _shape_problems(data, *widths)
            for problem in problems:
                findings.fail(f"{ref.name}: {problem}")
            if not problems:
                _check_rows(data, prompts, findings)
                line["response_tokens"] = int(data.batch["response_mask"].sum())
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
        shapes: list[tuple[int, ...]] = [(len(data), columns)]
        if name == "position_ids":
            shapes.append((len(data), 4, columns))
        if tensor is None:
            problems.append(f"`{name}` is missing")
        elif tuple(tensor.shape) not in shapes or tensor.dtype != torch.int64:
            expectation = " or ".join(map(str, shapes))
            problems.append(f"`{name}` is {tensor.dtype} {tuple(tensor.shape)}, not int64 {expectation}")
    if (lengths := data.meta_info.get("images_seqlens")) is not None:
        images = sum(len(media.get("image", ())) for media in data.non_tensor_batch["multi_modal_data"])
        if len(lengths) != images:
            problems.append(f"`images_seqlens` has {len(lengths)} entries for {images} images")
    return problems


def _check_rows(data: "DataProto", prompts: dict[str, list[int]], findings: Findings) -> None:
    """Padding sides, masks, positions, and the prompt, for a whole shard at a time."""
    import torch

    batch, eos = data.batch, torch.as_tensor(data.meta_info["eos_token_id"]).reshape(-1)
    blocked = torch.tensor(data.meta_info.get("blocked_token_ids", []), dtype=torch.long)
    by_length = torch.tensor([reason == "length" for reason in data.non_tensor_batch["finish_reason"]])
    width = batch["prompts"].shape[1]
    prompt_mask, response_mask = batch["attention_mask"][:, :width], batch["attention_mask"][:, width:]
    is_eos = torch.isin(batch["responses"], eos).long()
    through_first_eos = (is_eos.cumsum(-1) - is_eos == 0).long()
    rules = {
        "the prompt is not padded on the left": (prompt_mask.diff(dim=-1) >= 0).all(-1),
        "the response is not padded on the right": (response_mask.diff(dim=-1) <= 0).all(-1),
        "`response_mask` differs from the mask over the response": (
            batch["response_mask"] == response_mask
        ).all(-1),
        "the response goes on after a token that ends it": (response_mask <= through_first_eos).all(-1),
        "the response holds an id without a token, or one that stands for media": ~torch.isin(
            batch["responses"].where(response_mask.bool(), batch["prompts"].new_tensor(-1)), blocked
        ).any(-1),
        "`finish_reason` is length, and a token ended the response": ~by_length | ~is_eos.bool().any(-1),
        **_log_prob_rules(data, response_mask.bool()),
        "`input_ids` is not prompts then responses": (
            batch["input_ids"] == torch.cat([batch["prompts"], batch["responses"]], -1)
        ).all(-1),
        **_position_rules(data, width),
    }
    for problem, holds in rules.items():
        for index in (~holds).nonzero().flatten().tolist():
            findings.fail(problem, place(data, index))
    for index, uid in enumerate(data.non_tensor_batch["uid"]):
        if batch["prompts"][index][prompt_mask[index].bool()].tolist() != list(prompts.get(uid, [])):
            findings.fail("the prompt is not the one that was measured", place(data, index))


def _log_prob_rules(data: "DataProto", made: "torch.Tensor") -> dict[str, "torch.Tensor"]:
    """Rules on the log-probabilities of generated tokens, (rows,) each."""
    names = [name for name in ("rollout_log_probs", "raw_log_probs") if name in data.batch.keys()]  # noqa: SIM118
    return {
        f"`{name}` is no log-probability (NaN, infinite or above 0)": (
            (data.batch[name].isfinite() & (data.batch[name] <= _ROUNDING)) | ~made
        ).all(-1)
        for name in names
    }


def _position_rules(data: "DataProto", width: int) -> dict[str, "torch.Tensor"]:
    """Rules on positions, (rows,) each; those of a multimodal RoPE have a text row and three of their own."""
    import torch

    mask, positions = data.batch["attention_mask"][:, :width], data.batch["position_ids"]
    further = 1 + torch.arange(positions.shape[-1] - width)
    counted = mask.cumsum(-1) - 1
    text = positions if positions.dim() == 2 else positions[:, 0]
    expected = counted.clamp(min=0) if positions.dim() == 2 else counted.where(mask.bool(), 1)
    rules = {
        "the prompt's positions are not cumsum(mask) - 1": (text[:, :width] == expected).all(-1),
        "the response's positions do not go on from the prompt's": (
            text[:, width:] == text[:, width - 1, None] + further
        ).all(-1),
    }
    if positions.dim() == 3:
        prompt, response = positions[:, 1:, :width], positions[:, 1:, width:]
        start = (mask.argmax(-1))[:, None, None].expand(-1, 3, 1)
        plain = torch.tensor([not media for media in data.non_tensor_batch["multi_modal_data"]])
        rules |= {
            "time, height and width do not begin at 0, or padding is elsewhere": (
                (prompt.gather(-1, start) == 0).all(-1) & (prompt * (1 - mask[:, None]) == 0).all(-1)
            ).all(-1),
            "time, height and width of a text prompt are not its text positions": ~plain
            | (prompt == counted.clamp(min=0)[:, None]).all(-1).all(-1),
            "time, height and width of the response do not go on from the largest of the prompt's": (
                response == prompt.amax((1, 2))[:, None, None] + further
            )
            .all(-1)
            .all(-1),
        }
    return rules


CHECKS = [
    Check(
        "proto_shards",
        "shard_rules",
        "Every shard is whole (its digests match), all shards have the same keys, every field is one value "
        "per row, and no prompt is empty or longer than `data.max_prompt_length`. The table has each shard.",
        _shards,
    ),
    Check(
        "rollouts",
        "tensor_rules",
        "The rollouts are tensors as verl's trainer expects them: its shapes and dtypes; prompts padded on "
        "the left and equal to the ids that were measured; responses padded on the right, with nothing after "
        "the first token that ends a turn, and no id that has no token or stands for media; "
        "log-probabilities that are numbers; masks and positions that follow. The table has each shard.",
        _rollouts,
    ),
]
