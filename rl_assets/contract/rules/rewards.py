"""Rules on what the reward is made from: data_source, reward_model, extra_info."""

from typing import Any

from rl_assets.base.jsontext import describe, parse, quote, show
from rl_assets.contract.rules import scorers
from rl_assets.contract.rules.draft import Draft, has_null_key, without_null_keys


def check_data_source(source: Any, draft: Draft) -> str:
    """The row's data_source, or "" where there is none."""
    if type(source) is not str or not source or source.isspace():
        draft.add("data_source.missing", "data_source", f"found {describe(source)}, expected a name")
        return ""
    if not draft.options.knows_source(source):
        close = scorers.similar_source(source)
        hint = f"; did you mean {close}?" if close else ""
        draft.add("data_source.unknown", "data_source", f"found {quote(source)}, which no scorer reads{hint}")
    return source


def check_reward_model(model: Any, source: str, draft: Draft) -> dict[str, Any]:
    """The row's reward_model; its ground truth is judged by the scorer of `source`."""
    if model is None:
        draft.add("reward_model.missing", "reward_model", "found nothing, expected an object")
        return {}
    model = _as_object(model, "reward_model", draft)
    if model is None:
        return {}
    truth = model.get("ground_truth")
    if truth is None:
        if "ground_truth" not in model or model.get("style") != "model":
            found = "null" if "ground_truth" in model else "no such key"
            draft.add(
                "reward_model.ground_truth_missing",
                "reward_model.ground_truth",
                f"found {found}, expected the right answer",
            )
    elif not draft.options.custom_scorer:
        _check_truth(truth, source, draft)
    return model


def _check_truth(truth: Any, source: str, draft: Draft) -> None:
    path = "reward_model.ground_truth"
    if (expected := scorers.expected_truth(source, truth)) is not None:
        message = f"found {show(truth)}, expected {expected} for {quote(source)}"
        draft.add("reward_model.ground_truth_type", path, message)
    elif scorers.is_blank(source, truth):
        found = "text of spaces alone" if type(truth) is str and truth.isspace() else show(truth)
        draft.add("reward_model.ground_truth_empty", path, f"found {found}, expected the right answer")
    elif scorers.is_unreachable(source, truth):
        expected = "a number in digits, with nothing but a minus sign and a period beside them"
        draft.add("reward_model.unreachable", path, f"found {show(truth)}, expected {expected}")


def check_extra_info(info: Any, index: int, draft: Draft) -> dict[str, Any]:
    """The row's extra_info with an index: its own, or the one given."""
    if info is None:
        draft.repaired.add("index_assigned")
        return {"index": index}
    info = _as_object(info, "extra_info", draft)
    if info is None:
        return {}
    own = info.get("index")
    if own is None:
        draft.repaired.add("index_assigned")
        info = {**info, "index": index}
    elif type(own) is not int and type(own) is not str:
        draft.add(
            "extra_info.index_type", "extra_info.index", f"found {show(own)}, expected a whole number or text"
        )
    return info if _TRAINER_FIELDS.isdisjoint(info) else _check_trainer_fields(info, draft)


_TRAINER_FIELDS = frozenset({"tools_kwargs", "need_tools_kwargs", "tool_selection", "interaction_kwargs"})


def _check_trainer_fields(info: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """`info` with its tools_kwargs repaired, after a look at the other fields that agents read."""
    if "tools_kwargs" in info:
        info = _check_tools_kwargs(info, draft)
    need = info.get("need_tools_kwargs")
    names = info.get("tool_selection")
    interaction = info.get("interaction_kwargs")
    if need is not None and type(need) is not bool:
        _wrong_field("need_tools_kwargs", need, "true or false", draft)
    if names is not None and not (type(names) is list and all(type(name) is str for name in names)):
        _wrong_field("tool_selection", names, "a list of tool names", draft)
    if interaction is not None and type(interaction) is not dict:
        _wrong_field("interaction_kwargs", interaction, "an object", draft)
    if need is True and not info.get("tools_kwargs"):
        draft.add("extra_info.tools_kwargs_missing", "extra_info.tools_kwargs", "found none")
    return info


def _wrong_field(key: str, value: Any, expected: str, draft: Draft) -> None:
    draft.add("extra_info.field_type", f"extra_info.{key}", f"found {show(value)}, expected {expected}")


def _check_tools_kwargs(info: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """`info` with tools_kwargs that name only the tools that the row uses.

    A tool whose value is null looks present to a tool agent and fails inside it. In a columnar file all
    nulls below are fillings too; in json a deeper null was written on purpose.
    """
    tools = info["tools_kwargs"]
    path = "extra_info.tools_kwargs"
    filled = "extra_info" in draft.filled
    shallow = tools is None or (type(tools) is dict and None in tools.values())
    if shallow or (filled and has_null_key(tools)):
        if not draft.options.drop_nulls:
            draft.add("extra_info.tools_kwargs_type", path, "found a tool whose value is null")
            return info
        draft.repaired.add("null_keys_dropped")
        without = without_null_keys if filled else _without_null_tools
        repaired = tools and without(tools)
        if not repaired:
            return {key: value for key, value in info.items() if key != "tools_kwargs"}
        info = {**info, "tools_kwargs": repaired}
        tools = repaired
    if type(tools) is not dict:
        draft.add("extra_info.tools_kwargs_type", path, f"found {describe(tools)}, expected an object")
        return info
    for name, value in tools.items():
        if type(value) is not dict:
            message = f"found {describe(value)} for {quote(str(name))}, expected an object"
            draft.add("extra_info.tools_kwargs_type", path, message)
    return info


def _without_null_tools(tools: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tools.items() if value is not None}


def _as_object(value: Any, path: str, draft: Draft) -> dict[str, Any] | None:
    if type(value) is dict:
        return value
    if type(value) is str and draft.options.parse_json:
        try:
            parsed = parse(value)
        except ValueError as error:
            draft.add(f"{path}.not_an_object", path, f"found {error}, expected an object")
            return None
        if type(parsed) is dict:
            draft.repaired.add("json_text_parsed")
            return parsed
    draft.add(f"{path}.not_an_object", path, f"found {show(value)}, expected an object")
    return None
