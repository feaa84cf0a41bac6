"""Attention row by row, so that a row's numbers do not depend on the batch that it is in.

A padded batch hands every row's kernel a length that its companions decide, and a sum over another length
adds up in another order. Here a row's padding is cut off first. With matrix products that form each row
alike however many there are, a CPU computes the same bits for a row in every batch: a run that was killed
and goes on in other batches ends with the same log-probs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F

# MKL's mode in which the bits of a product do not depend on threads and alignment nor, as measured, on the
# number of rows. It is read at the first product of a process. `row_multiple` measures whether it holds.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

ROW_ATTENTION = "rl_assets_rows"
"""The name under which transformers knows it."""


def row_multiple(model: torch.nn.Module) -> int:
    """Rows of a batch are a multiple of this on a CPU.

    A library for matrix products may choose its kernel by the number of rows, and rounds in another way for a
    few rows or for a remainder; how differs by the kind of CPU. So the number is measured, with the sizes of
    the model's own layers: the smallest with which a row has the same bits in batches of every size.

    Returns:
        1, or 4 to 64 rows per thread.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    # A sum runs over the inputs; the number of outputs matters to the choice of a kernel while it is small.
    sizes = {(layer.in_features, min(layer.out_features, 2048), layer.weight.dtype) for layer in layers}
    threads = torch.get_num_threads()
    multiples = [1, *(rows * threads for rows in (4, 8, 16, 32, 64))]
    return next((each for each in multiples if all(_alike(*size, each) for size in sizes)), multiples[-1])


def _alike(inputs: int, outputs: int, dtype: torch.dtype, multiple: int) -> bool:
    """Whether products of random rows have the same bits in batches of several multiples."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
    most = max(64, 4 * multiple)
    rows = torch.randn(most, inputs, generator=draw).to(dtype)
    whole = F.linear(rows, weight)
    batches = range(multiple, most, multiple)
    return all(torch.equal(F.linear(rows[:batch], weight), whole[:batch]) for batch in batches)


def use_row_attention(model: Any) -> None:
    """Let a model that attends through ``sdpa`` attend row by row; any other is left as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def every_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        # A mask that is left out where no row is padded would send such a batch through another kernel.
        return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})

    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation != "sdpa" or not model._can_set_attn_implementation():
        return
    AttentionInterface.register(ROW_ATTENTION, row_attention)
    AttentionMaskInterface.register(ROW_ATTENTION, every_mask)
    model.set_attn_implementation(ROW_ATTENTION)


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`sdpa` for each row of a left-padded batch, over the row's own tokens.

    Args:
        module: the attention layer, which knows how many query heads share a key head.
        query: (rows, heads, queries, head size).
        key: (rows, key heads, keys, head size); value likewise.
        attention_mask: bool (rows, 1, queries, keys), True where a query sees a key. None, or a mask of
            another kind, is left to transformers' own function.

    Returns:
        (rows, queries, heads, head size), zero on padding; and None, for the weights.
    """
    from transformers.integrations.sdpa_attention import pack_gqa, repeat_kv, sdpa_attention_forward

    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is None or attention_mask.dtype != torch.bool or queries not in (1, keys):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    shared = getattr(module, "num_key_value_groups", 1)
    mask = attention_mask.expand(query.shape[0], -1, -1, -1)
    output = torch.zeros_like(query)
    with _one_thread():
        for rows, first in _runs(_first_tokens(mask)):
            own = slice(first, keys)
            q, k, v = query[rows], key[rows, :, own], value[rows, :, own]
            if queries == 1:
                # Nothing is masked within the row's own keys; heads that share a key are queries to it.
                made = F.scaled_dot_product_attention(pack_gqa(q, shared), k, v, scale=scaling)
                output[rows] = made.reshape(q.shape)
            else:
                k, v = repeat_kv(k, shared), repeat_kv(v, shared)
                sees = mask[rows, :, own, own]
                made = F.scaled_dot_product_attention(q[:, :, own], k, v, attn_mask=sees, scale=scaling)
                output[rows, :, own] = made
    return output.transpose(1, 2), None


def _first_tokens(mask: torch.Tensor) -> list[int]:
    """Per row, the first key that counts: (rows, 1, queries, keys) with 1 or as many queries as keys."""
    seen = mask[:, 0, 0] if mask.shape[2] == 1 else mask[:, 0].diagonal(dim1=-2, dim2=-1)
    return seen.to(torch.uint8).argmax(-1).tolist()


def _runs(firsts: list[int]) -> Iterator[tuple[slice, int]]:
    """Neighbours of one length, which may share a call, and their first token."""
    for first, run in groupby(enumerate(firsts), key=lambda each: each[1]):
        lines = [line for line, _ in run]
        yield slice(lines[0], lines[-1] + 1), first


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: how a buffer is aligned, and so rounding, depends on the thread that has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
