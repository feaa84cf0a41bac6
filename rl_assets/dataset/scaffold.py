"""A first defs.yaml for a dataset: guessed from its raw files, each guess with what it rests on."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from rl_assets.base.files import is_url
from rl_assets.contract.files.find import leads_out
from rl_assets.contract.files.manifest import RawFile, RawManifest, named_for_validation
from rl_assets.contract.files.reading import read_rows
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError

_SAMPLE = 50
_MANY_SOURCES = 20
_NEARLY_ALL = 0.8
_PROMPTS = ("prompt", "messages", "conversations", "question", "problem", "instruction", "query", "input")
_ANSWERS = (
    *("answer", "answers", "final_answer", "correct_answer", "expected_answer", "reference_answer", "gold"),
    *("solution", "solutions", "target", "label", "output", "response", "completion", "ground_truth"),
    *("test_cases", "tests", "test", "unit_tests", "input_output"),
)
_SYSTEM = ("system", "system_prompt")
_READ = {"tools", "agent_name"}
_SOURCES = ("data_source", "source", "dataset", "task", "domain", "subset")
_MEDIA = {"image": ("images", "image"), "video": ("videos", "video"), "audio": ("audios", "audio")}
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
DEFAULT_POLICY = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Guess:
    """A setting that was guessed.

    Attributes:
        key: the setting, such as `data.prompt_key`.
        value: what goes into the YAML; None leaves the setting out.
        why: what was seen.
        sure: False asks the reader to look.
    """

    key: str
    value: Any
    why: str
    sure: bool = True


@dataclass(frozen=True)
class Draft:
    """What a first YAML says.

    Attributes:
        name: of the dataset.
        guesses: one per setting, in the order of the YAML.
        passed_over: what else is in the folder, and is no raw file.
        unread: columns of the rows that nothing reads under this YAML, each with what was perhaps meant.
    """

    name: str
    guesses: list[Guess] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def settings(self, block: str) -> dict[str, Any]:
        """The values of a block (`data`, `contract`, `policy`)."""
        found = {guess.key: guess.value for guess in self.guesses if guess.value is not None}
        return {key.removeprefix(f"{block}."): v for key, v in found.items() if key.startswith(f"{block}.")}

    def options(self) -> ContractOptions:
        """What the field contract is told under this YAML."""
        names = ("prompt_key", "reward_fn_key", "image_key", "video_key", "audio_key")
        data = self.settings("data")
        return ContractOptions(**{n: data[n] for n in names if n in data}, **self.settings("contract"))


def draft_dataset(
    place: str, root: Path, *, name: str | None = None, policy: str | None = None, small: bool = False
) -> Draft:
    """Look at the raw files in `place` and guess what their YAML has to say.

    Args:
        place: a folder, file, glob or URL, relative to `root`.
        root: the project's top folder.
        name: of the dataset; by default that of the folder or file.
        policy: folder or hub id; by default the only one under data/policies.
        small: True has the first run take few prompts and short responses.

    Raises:
        InputError: there are no raw files, or they cannot be read.
    """
    manifest = scan_files([place], root=root, follow_links=True)
    rows = [row for file in manifest.files for row in _sample(file, root)]
    columns = _columns(rows)
    draft = Draft(
        name or _name(place),
        passed_over=manifest.passed_over,
        guesses=[
            *_split(manifest),
            *_links(manifest, root),
            *_prompt(columns),
            _source(columns, len(rows)),
            *_media(columns),
            *_repairs(columns),
            *(_first_run() if small else ()),
            _policy(policy, root, any(name in columns for names in _MEDIA.values() for name in names)),
        ],
    )
    return replace(draft, unread=_unread(columns, draft.options()))


def yaml_text(draft: Draft) -> str:
    """The draft as a commented defs.yaml."""
    data = draft.settings("data")
    contract = draft.settings("contract")
    val_files = data.pop("val_files", None)
    small = {key: value for key, value in data.items() if key in _SMALL}
    lines = [
        "# Every key: docs/configuration.md, or `dg utils inspect-component rl_assets.DataToRollout`.",
        "type: rl_assets.DataToRollout",
        "",
        "attributes:",
        f"  dataset: {_written(draft.name)}",
        "",
        "  # A verl `data:` block can be pasted here.",
        "  data:",
        "    # Files, globs or folders of parquet, json or jsonl, from the project's top folder.",
        *_setting("train_files", data.pop("train_files", None)),
        *(
            _setting("val_files", val_files)
            if val_files
            else [f"    # val_files: data/{draft.name}/test.jsonl"]
        ),
        *(line for key, value in data.items() if key not in small for line in _setting(key, value)),
        "    # In tokens, chat template included. Longer prompts are set aside, longer responses are cut.",
        "    max_prompt_length: 512",
        *([] if small else ["    max_response_length: 512"]),
        *(
            ["    # Small, since this machine has no GPU: a first run takes minutes. Remove or raise later."]
            if small
            else []
        ),
        *(line for key, value in small.items() for line in _setting(key, value)),
        "",
    ]
    if contract:
        lines += ["  contract:", *(line for key, v in contract.items() for line in _setting(key, v)), ""]
    lines += [
        "  policy:",
        "    # A folder, or a hub id.",
        *_setting("path", draft.settings("policy")["path"]),
        "",
        "  rollout:",
        "    # Responses per prompt.",
        "    n: 4",
        "    temperature: 1.0",
        "",
        "  # A scorer of your own, with verl's signature; without one it is chosen by the row's data_source.",
        "  # reward:",
        "  #   custom_reward_function:",
        f"  #     path: data/{draft.name}/reward.py",
    ]
    return "\n".join(lines) + "\n"


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        InputError: it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            file=path,
            found="a file that is there already",
            remedy="It is left as it is. Give another --name, or move the file away.",
        ) from None


def _setting(key: str, value: Any) -> list[str]:
    """A key of a block and its value; JSON texts are YAML too, and keep text from being read as a number."""
    if isinstance(value, list) and len(value) > 1:
        return [f"    {key}:", *(f"      - {json.dumps(item, ensure_ascii=False)}" for item in value)]
    if isinstance(value, list):
        value = value[0] if value else []
    return [f"    {key}: {_written(value)}"]


def _written(value: Any) -> str:
    """A value as YAML has it; a text that would be read as something else is quoted."""
    plain = (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_./][\w./*-]*", value)
        and value.lower() not in _WORDS
        and yaml.safe_load(value) == value
    )
    return value if plain else json.dumps(value, ensure_ascii=False)


_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "."}


def _name(place: str) -> str:
    """The name of the folder, or of the only file."""
    path = PurePosixPath(place.rstrip("/"))
    word = path.parent.name if re.search(r"[*?\[]", path.name) else path.name.split(".")[0]
    return re.sub(r"\W+", "_", word, flags=re.ASCII).strip("_")[:100] or "my_data"


def _sample(file: RawFile, root: Path) -> Iterator[dict[str, Any]]:
    for raw in islice(read_rows(file.path, file.format, root), _SAMPLE):
        if raw.value is not None:
            yield raw.value


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each column that are not null."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    return columns


def _split(manifest: RawManifest) -> Iterator[Guess]:
    val = [file.path for file in manifest.files if named_for_validation(file.path)]
    only_val = len(val) == len(manifest.files)
    val = [] if only_val else val
    train = [file.path for file in manifest.files if file.path not in val]
    rows = {file.path: file.rows for file in manifest.files}
    for key, paths, others in (("train_files", train, val), ("val_files", val, train)):
        if paths:
            count = f"{len(paths)} file{'s' * (len(paths) > 1)}, {sum(rows[path] for path in paths):,} rows"
            why = f"{count}; by the name for validation" if key == "val_files" else count
            why += "; by the name for validation, but there is no other" if only_val else ""
            yield Guess(f"data.{key}", _as_pattern(paths, others), why, sure=not only_val)


def _unread(columns: Iterable[str], options: ContractOptions) -> dict[str, str]:
    """The columns that are only carried along; of usual names, where what they hold is read from."""
    prompt = f"the prompt is read from `{options.prompt_key}` alone"
    meant = {
        **dict.fromkeys(_PROMPTS, prompt),
        **dict.fromkeys(_ANSWERS, "the right answer is read from `reward_model`: {…, `ground_truth`: …}"),
        **dict.fromkeys(_SYSTEM, f"a system turn is read from `{options.prompt_key}`, as a message"),
    }
    unread = [name for name in columns if name not in options.fields | _READ]
    return {name: meant.get(name.lower(), "") for name in unread}


def _links(manifest: RawManifest, root: Path) -> Iterator[Guess]:
    local = [Path(file.path) for file in manifest.files if not is_url(file.path)]
    if any(leads_out(root / path, root) for path in local if not path.is_absolute()):
        yield Guess("data.follow_links", True, "a link leads out of the project's folder")


def _as_pattern(paths: Sequence[str], others: Sequence[str]) -> str | list[str]:
    """A glob where it means exactly these files, so that later ones are found too; else the files."""
    first = paths[0]
    folder, slash, name = first.rpartition("/")
    suffix = "." + name.split(".", 1)[-1]

    def fits(path: str) -> bool:
        return path.rpartition("/")[0] == folder and path.endswith(suffix)

    if len(paths) > 1 and all(map(fits, paths)) and not any(map(fits, others)):
        return f"{folder}{slash}*{suffix}"
    return list(paths)


def _prompt(columns: Mapping[str, list[Any]]) -> Iterator[Guess]:
    """The column of the prompts and what it holds: messages before text, usual names before others."""
    for kind, holds in (("messages", _is_messages), ("text", _is_text)):
        found = [name for name, values in columns.items() if _most(values, holds)]
        usual = [name for name in _PROMPTS if name in found]
        chosen = usual[:1] or (found if len(found) == 1 else [])
        if chosen:
            rest = [name for name in found if name != chosen[0]]
            why = f"the column holds {kind}"
            if kind == "messages" or not usual:
                why += f"; so do {', '.join(rest)}" if rest else ", and no other does"
            sure = not rest or chosen[0] in ("prompt", "messages")
            yield Guess("data.prompt_key", chosen[0] if chosen[0] != "prompt" else None, why, sure)
            yield Guess(
                "contract.prompt_format", kind if kind == "text" else None, f"{kind} in `{chosen[0]}`"
            )
            return
    names = ", ".join(columns) or "none"
    yield Guess(
        "data.prompt_key", None, f"no column clearly holds the prompts (columns: {names})", sure=False
    )


def _source(columns: Mapping[str, list[Any]], rows: int) -> Guess:
    for name in _SOURCES:
        values = columns.get(name, [])
        if values and _most(values, _is_text):
            names = {value for value in values if _is_text(value)}
            shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
            few = len(names) <= _MANY_SOURCES
            if few or name == "data_source":
                value = None if name == "data_source" else name
                return Guess("data.reward_fn_key", value, f"`{name}` holds {shown}", sure=value is None)
    why = f"no column names the source of a row ({rows:,} rows looked at)"
    return Guess("data.reward_fn_key", None, why, sure=False)


def _media(columns: Mapping[str, list[Any]]) -> Iterator[Guess]:
    for modality, (default, other) in _MEDIA.items():
        if default in columns:
            yield Guess(f"data.{modality}_key", None, f"the column `{default}`")
        elif other in columns:
            yield Guess(f"data.{modality}_key", other, f"the column `{other}`")


def _repairs(columns: Mapping[str, list[Any]]) -> Iterator[Guess]:
    """What the contract has to repair, where all rows need it alike."""
    media = [columns[name] for names in _MEDIA.values() for name in names if name in columns]
    if media and all(_most(values, lambda value: not isinstance(value, list)) for values in media):
        yield Guess("contract.wrap_scalars", True, "media stand alone, not in lists")
    texts = [
        name
        for name, values in columns.items()
        if (name in ("tools", "reward_model", "extra_info") and _most(values, _is_json_text))
        or (name in _PROMPTS and _most(values, _is_json_text) and _most(values, _is_messages))
    ]
    if texts:
        yield Guess("contract.parse_json", True, f"{', '.join(texts)}: JSON text")


_SMALL = {"train_max_samples": 32, "val_max_samples": 32, "max_response_length": 96}


def _first_run() -> Iterator[Guess]:
    for key, value in _SMALL.items():
        yield Guess(f"data.{key}", value, "no GPU here: the first run takes minutes")


def _policy(policy: str | None, root: Path, media: bool) -> Guess:
    """A policy that is there, before one of the hub; one that reads media where the rows have any."""
    if policy is not None:
        return Guess("policy.path", policy, "as given")
    found = sorted(path.parent for path in (root / "data/policies").glob("*/config.json"))
    reading = [folder for folder in found if any((folder / name).is_file() for name in _PROCESSORS)]
    fitting = reading if media else [folder for folder in found if folder not in reading] or found
    if chosen := next(iter(fitting or found), None):
        others = ", ".join(folder.name for folder in found if folder != chosen)
        why = f"under data/policies; others there: {others}" if others else "the only one under data/policies"
        if media:
            why += "; it reads media" if fitting else "; it reads no media, and the rows have some"
        sure = not others and bool(fitting)
        return Guess("policy.path", chosen.relative_to(root).as_posix(), why, sure)
    return Guess("policy.path", DEFAULT_POLICY, "none given: a small one from the hub", sure=False)


def _most(values: Sequence[Any], holds: Callable[[Any], bool]) -> bool:
    """Whether nearly all of the values are so: a dataset may have broken rows."""
    return sum(map(holds, values)) >= _NEARLY_ALL * len(values)


def _is_messages(value: Any) -> bool:
    value = value if isinstance(value, list) else _json_text(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in value)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_json_text(value: Any) -> bool:
    return _json_text(value) is not None


def _json_text(value: Any) -> Any:
    """What a text holds, where that is a list or an object as JSON; else None."""
    try:
        return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        return None
