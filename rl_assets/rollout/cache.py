"""The key-value cache of the running batch: one buffer per layer, rows that come and go, no copy per token.

Rows are aligned at their right end: the newest token of every row lies in the same column, so a step
writes one column, and masks are those of a left-padded batch, which every model of transformers knows how
to make. Columns are used from left to right; at the right edge the window of live columns moves back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

# Columns beyond the longest row, so that the window moves back only once in so many steps.
_SLACK = 128


@dataclass
class Window:
    """The live part of the buffers: rows ``[0, rows)`` and columns ``[start, end)``."""

    rows: int = 0
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Prefilled:
    """Keys and values of one row that a forward pass over its tokens left.

    Attributes:
        layers: (keys, values) of every layer, each (heads, length, head size).
    """

    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]

    @property
    def length(self) -> int:
        """How many tokens the row has."""
        return self.layers[0][0].shape[1]

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token over all layers."""
        return sum(part[:, 0].numel() * part.element_size() for layer in self.layers for part in layer)


class _Layer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, window: Window) -> None:
        super().__init__()
        self.keys, self.values, self._window = keys, values, window
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("the buffers exist from the start")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, start, end = key_states.shape[0], self._window.start, self._window.end
        assert rows >= self._window.rows, "a token for every live row"
        assert key_states.shape[2] == 1, "one token at a time"
        self.keys[:rows, :, end] = key_states[:, :, 0]
        self.values[:rows, :, end] = value_states[:, :, 0]
        return self.keys[:rows, :, start : end + 1], self.values[:rows, :, start : end + 1]

    def get_seq_length(self) -> int:
        return self._window.end - self._window.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return self.keys.shape[2]


class BatchCache(Cache):
    """Keys and values of up to `slots` rows of up to `longest` tokens each.

    Args:
        like: a prefilled row, which gives the layers' shapes, dtype and device.
        slots: most rows at once.
        longest: most tokens that any row may come to hold.
        multiple: a step may come with idle rows behind the live ones, up to a multiple of this.
    """

    def __init__(self, like: Prefilled, slots: int, longest: int, multiple: int = 1) -> None:
        self.slots = slots
        self._lines = -(-slots // multiple) * multiple
        self.lengths: list[int] = []
        self._window = Window()
        self._columns = self.columns(longest)
        layers = [
            _Layer(self._buffer(keys), self._buffer(values), self._window) for keys, values in like.layers
        ]
        super().__init__(layers=layers)

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: a masked column still enters a product with weight 0, and 0 * NaN is NaN.
        return like.new_zeros(self._lines, like.shape[0], self._columns, like.shape[2])

    @staticmethod
    def columns(longest: int) -> int:
        """How many columns the buffers have for rows of up to `longest` tokens."""
        return longest + _SLACK

    def append(self, row: Prefilled, count: int) -> None:
        """Add `count` rows with the same prefilled tokens at the end of the batch."""
        first, length = self._window.rows, row.length
        assert first + count <= self.slots, "no free slot"
        if self._window.end < length:
            self._move_to(length)
        start, end = self._window.end - length, self._window.end
        for layer, (keys, values) in zip(self.layers, row.layers, strict=True):
            layer.keys[first : first + count, :, start:end] = keys
            layer.values[first : first + count, :, start:end] = values
        self._window.rows += count
        self.lengths += [length] * count
        self._fit()

    def remove(self, rows: Sequence[int]) -> list[int]:
        """Drop rows; the last ones take their places.

        Returns:
            the old index of each row that is left, in its new order.
        """
        dropped = set(rows)
        left = len(self.lengths) - len(dropped)
        holes = [row for row in sorted(dropped) if row < left]
        movers = [row for row in range(left, len(self.lengths)) if row not in dropped]
        if holes:
            columns = slice(self._window.start, self._window.end)
            for layer in self.layers:
                layer.keys[holes, :, columns] = layer.keys[movers, :, columns]
                layer.values[holes, :, columns] = layer.values[movers, :, columns]
        order = list(range(left))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self.lengths = [self.lengths[row] for row in order]
        self._window.rows = left
        self._fit()
        return order

    def make_room(self) -> None:
        """See to it that the next step has a column to write to."""
        if self._window.end == self._columns:
            self._move_to(self._window.end - self._window.start)

    def mask(self, rows: int | None = None) -> torch.Tensor:
        """Attention mask of the next step, its own token included: int64 (rows, live columns + 1).

        `rows` counts idle rows too, which see their own token alone; None is the live ones.
        """
        width = self._window.end - self._window.start + 1
        idle = 0 if rows is None else rows - len(self.lengths)
        first = torch.tensor([width - 1 - length for length in self.lengths] + [width - 1] * idle)
        mask = (torch.arange(width) >= first[:, None]).long()
        return mask.to(self.layers[0].keys.device, non_blocking=True)

    def advance(self) -> None:
        """Count the step's token as part of every row, once the forward pass is through."""
        self._window.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def _fit(self) -> None:
        self._window.start = self._window.end - max(self.lengths, default=0)
        if not self.lengths:
            self._window.start = self._window.end = 0

    def _move_to(self, end: int) -> None:
        window = self._window
        old = slice(window.start, window.end)
        new = slice(end - (window.end - window.start), end)
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[: window.rows, :, new] = buffer[: window.rows, :, old].clone()
        window.start, window.end = new.start, new.stop
