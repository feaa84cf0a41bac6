"""Rules on media: placeholders, parts and media columns must agree, and every medium must be usable."""

import re
from collections import Counter
from typing import Any, NamedTuple

from rl_assets.base.jsontext import describe
from rl_assets.base.modalities import COLUMN_OF, MEDIA_COLUMNS, MODALITIES, PLACEHOLDERS
from rl_assets.contract.rules.draft import Draft, Spot
from rl_assets.contract.rules.values import encode
from rl_assets.media.files import MediaReader, Seen, without_medium
from rl_assets.media.forms import PART_MODALITY, in_verls_form, payload_keys

# How well-known models mark media: Qwen-VL and -Audio, Llama, Gemma, GLM, InternVL, Phi, Pixtral.
_VISION_TOKENS = (
    r"<\|/?(?:image|video|audio|vision|img|frame)[a-z0-9_]*\|>"
    r"|<\|(?:begin|end)_of_(?:image|video|audio)\|>"
    r"|</?(?:start|end)_of_(?:image|video|audio)>"
    r"|<(?:image|audio|video)_soft_token>"
    r"|</?(?:IMG_CONTEXT|vid_context)>"
    r"|(?-i:\[IMG(?:_BREAK|_END)?\])"
)
_VISION_TOKEN = re.compile(_VISION_TOKENS, re.IGNORECASE)
_NEAR_MISS = re.compile(
    r"<[ \t]{0,4}(?:(?:image|video|audio)s?|img|picture|photo)[ \t_:#-]{0,4}\d{0,9}"
    r"(?:[ \t]{1,4}[a-z]{1,20}=[^<>]{0,200})?[ \t]{0,4}/?[ \t]{0,4}>",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[`\"']<(?:image|video|audio)>|<(?:image|video|audio)>[`\"']|</(?:image|video|audio)>")


class Medium(NamedTuple):
    """One item of a media column: the JSON text of the item without its bytes, the bytes, their digest."""

    item: str
    bytes: bytes | None
    digest: str | None


class RowMedia(NamedTuple):
    """The media of a row.

    Attributes:
        columns: one list per schema column (`images`, `videos`, `audios`); None where the row has none.
        identities: a JSON value per medium, in order, that says which medium it is wherever it lies.
    """

    columns: dict[str, list[Medium] | None]
    identities: list[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes that the row itself holds, as bytes or as text; media in files are not among them."""
        if not self.identities:
            return 0
        media = (medium for column in self.columns.values() for medium in column or ())
        return sum(len(medium.bytes or b"") + len(medium.item) for medium in media)


NO_MEDIA = RowMedia(dict.fromkeys(MEDIA_COLUMNS), [])


def check_media(row: dict[str, Any], reader: MediaReader, draft: Draft) -> RowMedia:
    """The media of a row whose prompt has been checked; what is wrong with them goes to `draft`."""
    options = draft.options
    has_columns = not options.media_columns.isdisjoint(row)
    if not has_columns and not draft.texts and not draft.parts:
        return NO_MEDIA
    present = {modality: row[key] for modality, key in options.media_keys.items() if row.get(key) is not None}
    if not present and not draft.texts and not draft.parts:
        return NO_MEDIA
    marks: Counter[str] = Counter()
    parts: dict[str, list[Spot]] = {modality: [] for modality in MODALITIES}
    _check_texts(marks, any(present.values()), draft)
    identities: list[Any] = []
    for spot in draft.parts:
        _check_part(spot, parts, identities, reader, draft)

    columns: dict[str, list[Medium] | None] = dict.fromkeys(MEDIA_COLUMNS)
    for modality in MODALITIES:
        if modality not in present:
            _compare(modality, marks[modality], parts[modality], 0, draft)
            continue
        items = _as_list(present[modality], modality, draft)
        if items is not None:
            columns[COLUMN_OF[modality]] = [
                _check_item(item, f"{COLUMN_OF[modality]}[{index}]", modality, identities, reader, draft)
                for index, item in enumerate(items)
            ]
            _compare(modality, marks[modality], parts[modality], len(items), draft)
    return RowMedia(columns, identities)


def _compare(modality: str, marks: int, bare: list[Spot], media: int, draft: Draft) -> None:
    """Hold marks in texts, and parts without a medium of their own, against the media of the column."""
    column, mark, parts = COLUMN_OF[modality], PLACEHOLDERS[modality], len(bare)
    placeholders = marks + parts
    if placeholders == media:
        return
    if odd := [spot for spot in bare if _may_hold_medium(spot.value)]:
        for spot in odd:
            draft.add("media.bad_item", spot.path, without_medium(spot.value, modality))
        return
    if not media and marks:
        message = f"found {marks} {mark} in the prompt and no {column}"
        draft.add("media.orphan_placeholder", column, message)
    if not media and parts:
        message = f"found {parts} parts of the type {modality} without a medium, and no {column}"
        draft.add("media.count_mismatch", column, message)
    if not media:
        return
    if not placeholders:
        draft.add("media.orphan_media", column, f"found {media} {column} and no {mark} in the prompt")
    else:
        message = f"found {placeholders} {mark} in the prompt and {media} {column}, expected as many"
        draft.add("media.count_mismatch", column, message)


def _may_hold_medium(part: dict[str, Any]) -> bool:
    """Whether a part in which no medium was found has a value that may be one, under an unknown key."""
    return any(type(value) in (str, bytes, dict, list) for key, value in part.items() if key != "type")


def _check_texts(marks: Counter[str], has_media: bool, draft: Draft) -> None:
    for spot in draft.texts:
        text = spot.value
        for modality, mark in PLACEHOLDERS.items():
            if count := text.count(mark):
                marks[modality] += count
                _check_role(spot, draft)
        if _QUOTED.search(text):
            draft.add("media.quoted_placeholder", spot.path, "found a placeholder in quotes or closed")
        token = _VISION_TOKEN.search(text)
        found = token.group() if token else next((t for t in draft.options.special_tokens if t in text), None)
        if found is not None:
            draft.add("media.vision_token", spot.path, f"found {found}")
        for match in _NEAR_MISS.finditer(text):
            if match.group() not in PLACEHOLDERS.values():
                strict = has_media or draft.options.has_processor
                code = "media.near_miss" if strict else "media.lookalike"
                near = match.group()[:40]
                draft.add(code, spot.path, f"found {near}, expected <image>, <video> or <audio>")
                break


def _check_role(spot: Spot, draft: Draft) -> None:
    if spot.role and spot.role != "user":
        draft.add("media.unexpected_role", spot.path, f"found media in a message of the {spot.role}")


def _check_part(
    spot: Spot,
    parts: dict[str, list[Spot]],
    identities: list[Any],
    reader: MediaReader,
    draft: Draft,
) -> None:
    """A part without payload stands for the next item of the column; one with payload is a medium itself."""
    modality = PART_MODALITY[spot.value["type"]]
    _check_role(spot, draft)
    payload = {key: value for key, value in spot.value.items() if key != "type"}
    key = next((key for key in payload_keys(modality) if payload.get(key) is not None), None)
    if key is None:
        parts[modality].append(spot)
        return
    seen = reader.look(payload[key], modality)
    _report(seen, f"{spot.path}.{key}", draft)
    identities.append([modality, seen.digest or seen.address])


def _as_list(value: Any, modality: str, draft: Draft) -> list[Any] | None:
    if type(value) is list:
        return value
    column = COLUMN_OF[modality]
    if type(value) in (str, dict, bytes) and draft.options.wrap_scalars:
        draft.repaired.add("scalars_wrapped")
        return [value] if value else []
    draft.add("media.not_a_list", column, f"found {describe(value)}, expected a list")
    return None


def _check_item(
    item: Any, path: str, modality: str, identities: list[Any], reader: MediaReader, draft: Draft
) -> Medium:
    if type(item) is bytes and draft.options.wrap_scalars:
        draft.repaired.add("scalars_wrapped")
        item = {"bytes": item}
    if type(item) is dict and None in item.values() and draft.options.drop_nulls:
        draft.repaired.add("null_keys_dropped")
        item = {key: value for key, value in item.items() if value is not None}
    if (plain := in_verls_form(item, modality)) is not item:
        draft.repaired.add("media_renamed")
        item = plain
    rest: dict[str, Any] = {}
    data = None
    if type(item) is dict:
        key = next((key for key in payload_keys(modality) if key in item), None)
        payload = item if key is None else item[key]
        rest = {name: value for name, value in item.items() if name not in payload_keys(modality)}
        if type(item.get("bytes")) is bytes:
            data = item["bytes"]
            # Kept as a null in its place, so that the keys come back in their order.
            item = {**item, "bytes": None}
        seen = reader.look(payload, modality)
    else:
        seen = reader.look(item, modality, bare=True)
    _report(seen, path, draft)
    text = "" if type(item) is bytes else encode(item, path, draft.found)
    rest.pop("type", None)
    identities.append(
        [modality, seen.digest or seen.address, rest] if rest else [modality, seen.digest or seen.address]
    )
    return Medium(text, data, seen.digest)


def _report(seen: Seen, path: str, draft: Draft) -> None:
    for code, message in seen.faults:
        draft.add(code, path, message)
