"""Addresses may hold no credentials.

The address of a raw file is written to manifests, tables, the event log and error messages, and a password
or a token in it would be written there too.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

REMEDY = (
    "Give them through the environment instead, as the file system's own settings (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN), or in a file under FSSPEC_CONFIG_DIR."
)


def carries_credentials(address: str) -> bool:
    """Whether a URL has a user's part (``s3://key:secret@bucket``), or is a web address with a query
    (``https://host/rows.jsonl?token=…``, which is how signed addresses look)."""
    if "://" not in address:
        return False
    try:
        url = urlsplit(address)
    except ValueError:
        return "@" in address
    return "@" in url.netloc or (url.scheme in ("http", "https") and bool(url.query))


def find_credentials(value: Any, place: str = "") -> Iterator[str]:
    """Places in nested dicts and lists whose text is an address with credentials in it."""
    if isinstance(value, str) and carries_credentials(value):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from find_credentials(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from find_credentials(part, f"{place}[{index}]")
