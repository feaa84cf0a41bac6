"""The forms in which trainers read the rows of a training set, and what each cannot carry.

A form keeps the columns of verl's schema and the users' own, and says what stands in the columns that its
trainer reads otherwise. What a row says and a trainer does not read is named before anything is generated.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rl_assets.base.jsontext import to_json
from rl_assets.base.modalities import COLUMN_OF
from rl_assets.errors import InputError
from rl_assets.prompts.messages import build_messages
from rl_assets.trainset.media import MediaForm, settings

Row = dict[str, Any]

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True)
class Form:
    """How a trainer reads a row.

    Attributes:
        trainer: its name.
        columns: by name, what is made of a row for a column that it reads otherwise than verl.
        image: what an image is in the column `images`, given its bytes or its path.
        image_type: the Arrow type of that; None is that of the values.
        features: of `datasets`, for columns of which Arrow's types do not tell what they are.
        unread: what a row may say that it does not read, and why.
        reserved: names of columns that it uses itself.
    """

    trainer: str
    columns: Mapping[str, Callable[[Row], Any]]
    image: Callable[[bytes | str], Any]
    unread: Mapping[str, str]
    reserved: frozenset[str]
    image_type: pa.DataType | None = None
    features: Mapping[str, Any] = field(default_factory=dict)

    def row(self, row: Row) -> Row:
        """A row of this form, its images apart from its prompt; one without has an empty list of them.

        Args:
            row: in verl's schema, its media as they are written for verl.

        Raises:
            InputError: it has a video or an audio clip.
        """
        made = row | {name: make(row) for name, make in self.columns.items()}
        made["prompt"], images = apart(made)
        for column in COLUMN_OF.values():
            made.pop(column, None)
        return made | {"images": list(map(self.image, images))}

    def types(self, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """The types of its columns, where its rows have values of `types`; without images where no row has
        one."""
        none = types["images"] == pa.list_(pa.null())
        images = {} if none else {"images": pa.list_(self.image_type or types["images"].value_type)}
        return {name: kind for name, kind in types.items() if name != "images"} | images


def apart(row: Row) -> tuple[list[dict[str, Any]], list[bytes | str]]:
    """A prompt with a bare part in place of every image, and the images in their order, each its bytes or its
    path. A prompt without media is as it was.

    Raises:
        InputError: it has a video or an audio clip.
    """
    media = {modality: items for modality, name in COLUMN_OF.items() if (items := row.get(name))}
    messages, images = build_messages(row, row["prompt"], media), list[bytes | str]()

    def bare(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") not in COLUMN_OF:
            return part
        if part["type"] != "image":
            raise InputError(
                field="curation.forms",
                found=f"`trl` or `openrlhf`, and the row {row['uid']} has a {part['type']}",
                expected="rows with no media but images",
                remedy="Take the form out, or the rows.",
            )
        images.append(_payload(part))
        return {"type": "image"}

    parted = [
        message | {"content": [bare(part) for part in message["content"]]}
        if type(message.get("content")) is list
        else message
        for message in messages
    ]
    return parted, images


def _payload(part: Mapping[str, Any]) -> bytes | str:
    payload = part["bytes"] if "bytes" in part else part["image"]
    if isinstance(payload, str) and payload.startswith("data:"):
        return base64.b64decode(payload.partition(",")[2])
    return payload or b""


def _label(row: Row) -> str:
    """The ground truth as text: its JSON where it is none."""
    truth = row["reward_model"]["ground_truth"]
    return truth if isinstance(truth, str) else to_json(truth)


def _with_content(row: Row) -> list[dict[str, Any]]:
    """Every message with the key `content`, which TRL asks for."""
    return [message if "content" in message else {**message, "content": None} for message in row["prompt"]]


def _without_marks(row: Row) -> list[dict[str, Any]]:
    """Texts with `<image>` in a row without images as parts, in which OpenRLHF looks for no placeholder."""
    if row.get("images"):
        return row["prompt"]
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str) and "<image>" in message["content"]
        else message
        for message in row["prompt"]
    ]


_ONLY_IMAGES = "reads no media but images"

TRL = Form(
    trainer="TRL's GRPOTrainer",
    columns={"prompt": _with_content, "ground_truth": lambda row: row["reward_model"]["ground_truth"]},
    image=lambda image: {
        "bytes": image if isinstance(image, bytes) else None,
        "path": image if isinstance(image, str) else None,
    },
    image_type=_IMAGE,
    features={"images": {"feature": {"_type": "Image"}, "_type": "List"}},
    unread={
        "tools": "takes tools as Python functions, the same for all rows, and shows no others to the policy",
        "chat_template_kwargs": "takes them of its own configuration, the same for all rows",
        "videos": _ONLY_IMAGES,
        "audios": _ONLY_IMAGES,
        "settings of an image": "hands every image to the processor as it is",
    },
    reserved=frozenset(
        {"ground_truth", "image", "messages", "chosen", "rejected", "completion", "completions"}
        | {"completion_ids", "environment", "environments", "trainer_state", "log_extra", "log_metric"}
    ),
)
"""TRL 1.16 hands every column but `prompt` to the reward functions by its name. `datasets` decodes its images
to pictures."""

OPENRLHF = Form(
    trainer="OpenRLHF",
    columns={"prompt": _without_marks, "label": _label, "datasource": lambda row: row["data_source"]},
    image=lambda image: image,
    unread={
        "tools": "calls the chat template without tools",
        "chat_template_kwargs": "calls the chat template without arguments",
        "videos": _ONLY_IMAGES,
        "audios": _ONLY_IMAGES,
        "settings of an image": "hands every image to the processor as it is",
    },
    reserved=frozenset({"label", "datasource"}),
)
"""OpenRLHF 0.11.2 with `--data.input_key prompt --data.label_key label --data.apply_chat_template`. Its
reward functions are given the label alone."""

FORMS = {"trl": TRL, "openrlhf": OPENRLHF}
"""The forms of other trainers, by the name of their folder."""


def unread(form: Form, row: Row) -> Iterator[tuple[str, str]]:
    """What a row says and a trainer does not read: each field, and why.

    Args:
        form: of the trainer.
        row: in verl's schema, as the raw file has it.
    """
    said = {name for name in ("tools", "chat_template_kwargs") if row.get(name)}
    for part in _media(row):
        said.add(COLUMN_OF[part["type"]])
        if settings(part, part["type"]):
            said.add("settings of an image")
    yield from ((name, why) for name, why in form.unread.items() if name in said)
    for name in sorted(form.reserved & row.keys()):
        yield name, "has a column of that name with another meaning"


def unread_by_verl(media: MediaForm, row: Row) -> Iterator[tuple[str, str]]:
    """What verl cannot open of a row in the form in which media are written."""
    for part in _media(row) if media == "bytes" else ():
        kind = part["type"]
        if kind == "audio" or (kind == "video" and not _has_frames(part)):
            yield COLUMN_OF[kind], "opens it by its path alone: write `curation.media: paths`"


def _has_frames(part: Mapping[str, Any]) -> bool:
    return any(isinstance(value, list) for value in part.values())


def _media(row: Row) -> Iterator[dict[str, Any]]:
    """The media of a row as parts, whether they are in a column or in a message."""
    for kind, column in COLUMN_OF.items():
        for item in row.get(column) or ():
            yield {"type": kind, **item} if isinstance(item, dict) else {"type": kind, kind: item}
    for message in row["prompt"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in COLUMN_OF and len(part) > 1:
                yield part
