"""Versions of what lies in the store, and what is said of one that cannot be read.

A shard's meta.json, every manifest, the footer of every table and every line of a journal carry the version
of their layout. A reader takes the versions that it knows. It refuses a newer one, so that an old release
neither misreads it nor makes it again at the price of a rollout; of one that is too old it says what to
materialise again. Records (`*.build.json`, `*.checks.json`) only save work: one of another version is made
anew. Where media lie is part of the layout of the shards that refer to them.

Change a layout, and raise its version here; tests/protocol/fixtures holds a specimen of each version.
"""

from collections.abc import Mapping
from typing import Any

from rl_assets.errors import InputError

SHARD = 1
MANIFEST = 1
TABLE = 1
JOURNAL = 1
RECORD = 2

KEY = "format"
"""Key of the version in what is JSON; where it is missing, the version is 1."""

TABLE_KEY = b"rl_assets.format"
"""Key of the version in the metadata of a table's schema; where it is missing, the version is 1."""


class UnreadableError(InputError):
    """What lies in the store is damaged, or of a layout that is no longer read."""


def refuse_newer(place: str, found: int, known: int) -> None:
    """Refuse what a newer release wrote.

    Args:
        place: the file or folder, for the message.
        found: the version that it says.
        known: the newest version that this release reads.

    Raises:
        InputError: `found` is newer.
    """
    if found > known:
        raise InputError(
            file=place,
            field=KEY,
            found=f"version {found}",
            expected=f"at most version {known}",
            remedy="A newer rl-assets wrote this: update this one, or point RL_ASSETS_STORAGE elsewhere.",
        )


def version(content: Mapping[str, Any]) -> int:
    """The version that a JSON object says."""
    return int(content.get(KEY, 1))


def check_table(place: str, metadata: Mapping[bytes, bytes] | None) -> None:
    """Refuse a table, by the metadata in its footer, of a newer version.

    Raises:
        InputError: it is newer.
    """
    refuse_newer(place, int((metadata or {}).get(TABLE_KEY, b"1")), TABLE)
