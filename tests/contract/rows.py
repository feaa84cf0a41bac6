"""Rows for the contract's tests, and the contract run on them."""

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import ContractResult, apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.schema import decode_row

ABSENT = object()


def row(**changes: Any) -> dict[str, Any]:
    """A row that nothing is wrong with, after `changes`; a value of ABSENT takes the column out."""
    plain = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What is 40 + 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"split": "train", "index": 7},
    }
    return {key: value for key, value in (plain | changes).items() if value is not ABSENT}


def said(text: str, **changes: Any) -> dict[str, Any]:
    """A good row whose one user message is `text`."""
    return row(prompt=[{"role": "user", "content": text}], **changes)


def parts(*content: Any, **changes: Any) -> dict[str, Any]:
    """A good row whose one user message is a list of parts."""
    return row(prompt=[{"role": "user", "content": list(content)}], **changes)


def png(width: int = 32, height: int = 24, mode: str = "RGB") -> bytes:
    """The bytes of a PNG image that is not all one colour."""
    image = Image.radial_gradient("L").resize((width, height)).convert(mode)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def data_uri(data: bytes) -> str:
    """`data` as a data: URI."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    """Write rows as jsonl; a row that is bytes is written as it stands."""
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def run(
    folder: Path,
    train: str | list[str] = "train.jsonl",
    val: str | list[str] | None = None,
    **options: Any,
) -> ContractResult:
    """The contract applied to raw files in `folder`."""
    manifest = scan_files(train, val, root=folder)
    out = Path(tempfile.mkdtemp(prefix=".out-", dir=folder))
    result = apply_contract(manifest, ContractOptions(**options), root=folder, folder=out)
    assert result.rows_in == manifest.rows == result.accepted.num_rows + result.rejected.num_rows
    return result


def judge(folder: Path, *rows: Any, **options: Any) -> ContractResult:
    """The contract applied to one jsonl file of `rows`."""
    write_jsonl(folder / "train.jsonl", list(rows))
    return run(folder, **options)


def errors(result: ContractResult) -> list[tuple[str, str | None]]:
    """Code and path of every error, in order of rows and gravity."""
    return [(error["code"], error["path"]) for record in result.rejected.rows() for error in record["errors"]]


def codes(result: ContractResult) -> set[str]:
    """Codes of all errors and warnings."""
    return {code for counts in (result.by_code, result.warnings) for code, rows in counts.items() if rows}


def accepted(result: ContractResult) -> list[dict[str, Any]]:
    """The accepted rows as they come out, without the uid."""
    return [{k: v for k, v in decode_row(r).items() if k != "uid"} for r in result.accepted.rows()]


def uids(result: ContractResult) -> list[str]:
    """The accepted rows' uids."""
    return [record["uid"] for record in result.accepted.rows(("uid",))]
