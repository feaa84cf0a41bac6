"""Versions of what lies in the store, and what is said of one that cannot be read.

A shard's meta.json, every manifest and the footer of every table carry the version of their layout. A reader
takes the versions that it knows. It refuses a newer one, so that an old release neither misreads it nor makes
it again at the price of a rollout.

Change a layout, and raise its version here; tests/protocol/fixtures holds one specimen of each.
"""

from collections.abc import Mapping
from typing import Any

from rl_assets.errors import InputError

SHARD = 1
MANIFEST = 1
"""0, which says no version, is read as 1."""
TABLE = 1
"""0, which says no version, is read as 1."""

TABLE_KEY = b"rl_assets.format"
"""Key of the version in the metadata of a table's schema."""


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
            field="format",
            found=f"version {found}",
            expected=f"at most version {known}",
            remedy="A newer rl-assets wrote this: update this one, or point RL_ASSETS_STORAGE elsewhere.",
        )


def check_manifest(place: str, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest (as JSON says it) of a newer version.

    Raises:
        InputError: it is newer.
    """
    refuse_newer(place, int(manifest.get("format", 0)), MANIFEST)


def check_table(place: str, metadata: Mapping[bytes, bytes] | None) -> None:
    """Refuse a table, by the metadata in its footer, of a newer version.

    Raises:
        InputError: it is newer.
    """
    refuse_newer(place, int((metadata or {}).get(TABLE_KEY, b"0")), TABLE)
