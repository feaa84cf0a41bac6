"""The batch's cache holds, for every row, exactly the tokens that were put there, whatever comes and goes."""

from unittest import mock

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rl_assets.rollout.cache import BatchCache, Prefilled

SLOTS, LONGEST, LAYERS, HEADS, SIZE = 4, 12, 2, 2, 3


def states(tokens: list[int], layer: int) -> torch.Tensor:
    """(heads, tokens, size) in which every number tells its token and layer."""
    return torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(HEADS, -1, SIZE) + 1000 * layer


class Batches(RuleBasedStateMachine):
    """Random runs of a batch beside plain lists of its rows' tokens."""

    @initialize()
    def start(self) -> None:
        layer = (states([0], 0), states([0], 0))
        # Few spare columns, so that the window has to move back often.
        with mock.patch("rl_assets.rollout.cache._SLACK", 4):
            self.cache = BatchCache(Prefilled([layer] * LAYERS), SLOTS, LONGEST)
        self.rows: list[list[int]] = []
        self.token = 0

    def fresh(self, count: int) -> list[int]:
        self.token += count
        return list(range(self.token - count + 1, self.token + 1))

    @precondition(lambda self: len(self.rows) < SLOTS)
    @rule(data=st.data(), length=st.integers(1, LONGEST))
    def append(self, data: st.DataObject, length: int) -> None:
        count = data.draw(st.integers(1, SLOTS - len(self.rows)))
        tokens = self.fresh(length)
        row = Prefilled([(states(tokens, layer), -states(tokens, layer)) for layer in range(LAYERS)])
        assert (row.length, row.bytes_per_token) == (length, LAYERS * 2 * HEADS * SIZE * 4)
        self.cache.append(row, count)
        self.rows += [list(tokens) for _ in range(count)]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=1, unique=True))
        order = self.cache.remove(gone)
        assert sorted(order) == [row for row in range(len(self.rows)) if row not in gone]
        self.rows = [self.rows[row] for row in order]

    @precondition(lambda self: self.rows)
    @rule(steps=st.integers(1, LONGEST))
    def decode(self, steps: int) -> None:
        """Steps while the longest row has room; each must show the model the rows as they are."""
        for _ in range(min(steps, LONGEST - max(map(len, self.rows)))):
            new = self.fresh(len(self.rows))
            for row, token in zip(self.rows, new, strict=True):
                row.append(token)
            self.cache.make_room()
            mask = self.cache.mask()
            for layer in range(LAYERS):
                step = torch.stack([states([token], layer) for token in new])
                keys, values = self.cache.update(step, -step, layer)
                assert torch.equal(keys, -values)
                assert mask.shape == (len(self.rows), keys.shape[2])
                for row, tokens in enumerate(self.rows):
                    seen = keys[row, 0, mask[row].bool(), 0] - 1000 * layer
                    assert seen.tolist() == tokens
                    assert mask[row].tolist() == sorted(mask[row].tolist())
            self.cache.advance()

    @invariant()
    def lengths_are_known(self) -> None:
        if hasattr(self, "rows"):
            assert self.cache.lengths == [len(row) for row in self.rows]
            assert self.cache.get_seq_length() == max(map(len, self.rows), default=0)


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
