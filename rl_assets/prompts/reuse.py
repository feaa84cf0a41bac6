"""What the last build rendered: its ids, found by what they were made of."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_assets.base.jsontext import canonical_json, to_json
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.tables import Table
from rl_assets.contract.rules.codes import CODES
from rl_assets.prompts.encoding import Encoded
from rl_assets.prompts.measure import media_counts
from rl_assets.prompts.refused import Refused
from rl_assets.prompts.settings import row_settings
from rl_assets.prompts.tools import row_tools

_MADE_OF = ["prompt", "extra_columns", "extra_info", *MEDIA_COLUMNS]
_COLUMNS = [*_MADE_OF, "warnings", "prompt_ids", "prompt_length", "uncut_length"]


@dataclass
class Earlier:
    """Ids of rows that were rendered before, under the same stamp, and whose prompt lacks nothing.

    A row is found by the exact text of its prompt, its own tools and settings, and its media. The ids lie in
    a file, of which what is asked for is read; in memory are 200 bytes per row.

    Attributes:
        file: int32 ids, one row after the other; made by `add`.
    """

    file: Path
    _places: dict[bytes, int] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=list)
    _stored: list[int] = field(default_factory=list)

    def add(self, table: Table, *, without_ids_beyond: int | None, cut_alike: bool) -> None:
        """Take in the rows of a table that can be used again.

        Args:
            table: rows with `prompt_ids` and `prompt_length`, and where some were cut `uncut_length`.
            without_ids_beyond: a prompt longer than this is known by its length alone; None where ids are
                needed of every prompt.
            cut_alike: prompts that were cut are cut the same way now.
        """
        names = table.schema.names
        with self.file.open("ab") as sink:
            for batch in table.batches([name for name in _COLUMNS if name in names]):
                ids = batch.column("prompt_ids")
                stored = pc.fill_null(pc.list_value_length(ids), 0).to_numpy()
                lengths = batch.column("prompt_length").to_numpy()
                usable = stored == lengths
                if "uncut_length" in names:
                    uncut = batch.column("uncut_length")
                    full = pc.coalesce(uncut, batch.column("prompt_length")).to_numpy()
                    usable &= (full == lengths) | cut_alike
                    lengths = full
                if without_ids_beyond is not None:
                    usable |= lengths > without_ids_beyond
                usable &= ~_lack_something(batch.column("warnings"))
                batch = batch.filter(pa.array(usable))
                start = len(self._lengths)
                self._lengths += lengths[usable].tolist()
                self._stored += stored[usable].tolist()
                sink.write(np.ascontiguousarray(batch.column("prompt_ids").flatten().to_numpy()).tobytes())
                for place, key in enumerate(_keys(batch), start):
                    if key is not None:
                        self._places[key] = place

    def find(self, batch: pa.RecordBatch) -> np.ndarray:
        """Per row of `batch` its place here, for `take`, or -1. int64, of shape (rows,)."""
        if not self._places:
            return np.full(batch.num_rows, -1)
        places = (self._places.get(key, -1) if key is not None else -1 for key in _keys(batch))
        return np.fromiter(places, dtype=np.int64, count=batch.num_rows)

    def take(self, places: np.ndarray) -> tuple[Encoded, np.ndarray]:
        """Ids (possibly none) and full lengths (int64) of the rows at `places`."""
        ids, starts, stored, full = self._index
        return gather(ids, starts[places], stored[places]), full[places]

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All ids, and of each row where they start, how many they are, and its full length."""
        size = self.file.stat().st_size
        ids = np.memmap(self.file, np.int32, "r").view(np.ndarray) if size else np.empty(0, np.int32)
        stored, full = np.asarray(self._stored, np.int64), np.asarray(self._lengths, np.int64)
        return ids, np.cumsum(stored) - stored, stored, full


def merge(earlier: Earlier, places: np.ndarray, made: Encoded) -> tuple[Encoded, np.ndarray]:
    """The ids and the full length of every row: those found earlier at `places`, else the next of `made`."""
    known = places >= 0
    if not known.any():
        return made, made.lengths
    found, full = earlier.take(places[known])
    both = found + made
    starts = np.cumsum(both.lengths) - both.lengths
    order = np.empty(len(places), dtype=np.int64)
    order[known] = np.arange(known.sum())
    order[~known] = np.arange(known.sum(), len(places))
    lengths = np.concatenate([full, made.lengths])
    return gather(both.ids, starts[order], both.lengths[order]), lengths[order]


def gather(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Encoded:
    """The pieces of `ids` that begin at `starts`, one after the other."""
    ends = np.cumsum(lengths)
    shift = np.repeat(starts - (ends - lengths), lengths)
    return Encoded(ids[np.arange(len(shift)) + shift], lengths)


def _lack_something(warnings: pa.ListArray) -> np.ndarray:
    """Whether the rendered prompt of each row lacks a part of its row: such a row is looked at again."""
    found = np.zeros(len(warnings), dtype=bool)
    for index in pc.indices_nonzero(warnings.is_valid()).to_pylist():
        found[index] = any(CODES[one["code"]].stage == "render" for one in warnings[index].as_py())
    return found


def _keys(batch: pa.RecordBatch) -> Iterable[bytes | None]:
    """Per row 16 bytes that stand for all that its ids depend on besides the stamp; None where a
    medium has no digest, since nobody knows what it will be tomorrow."""
    prompts = batch.column("prompt").cast(pa.binary()).to_pylist()
    tools = row_tools(batch.column("extra_columns"))
    settings = row_settings(batch)
    counts = media_counts(batch).tolist()
    for index, prompt in enumerate(prompts):
        state = hashlib.blake2b(prompt, digest_size=16)
        if tools is not None and tools[index] is not None:
            state.update(b"\0tools" + to_json(tools[index]).encode())
        if index in settings:
            if isinstance(settings[index], Refused):
                yield None
                continue
            state.update(b"\0settings" + canonical_json(settings[index]).encode())
        if counts[index]:
            media = [batch.column(name)[index].as_py() or [] for name in MEDIA_COLUMNS]
            known = sum(medium["digest"] is not None for items in media for medium in items)
            # Without a digest too are media that stand in the messages themselves.
            if known < counts[index]:
                yield None
                continue
            named = [[[medium["item"], medium["digest"]] for medium in items] for items in media]
            state.update(b"\0media" + to_json(named).encode())
        yield state.digest()
