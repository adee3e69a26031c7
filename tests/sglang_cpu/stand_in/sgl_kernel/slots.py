"""Copies between the table of slots (`req_to_token`) and flat lists of slots, and of what the slots hold."""

import ctypes

import numpy
import torch  # type: ignore[import-not-found]


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Write the next `end - start` entries of `out_cache_loc` into each request's row at [start, end)."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[taken : taken + last - first]
        taken += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """The reverse: each request's row at [start, end) into the next entries of `out_cache_loc`."""
    filled = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out_cache_loc[filled : filled + last - first] = req_to_token[row, first:last]
        filled += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The `topk * num_steps` slots after each request's tokens, request by request into `out_cache_loc`."""
    count = topk * num_steps
    for place, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[place * count : (place + 1) * count] = req_to_token[row, length : length + count]


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A table like `req_to_token` with a row for each branch of each request: its prefix, then the branch's slots.

    The slots of the branches follow the request's tokens, `num_steps` for each branch in turn.
    """
    table = torch.zeros(len(req_pool_indices) * topk, pool_len, dtype=req_to_token.dtype)
    for place, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            first = length + branch * num_steps
            table[place * topk + branch, :length] = req_to_token[row, :length]
            table[place * topk + branch, length : length + num_steps] = req_to_token[row, first : first + num_steps]
    return table


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
    _size: int | None = None,
) -> None:
    """The entries of `out_cache_loc` at the indices that are not negative, in order and without gaps."""
    accepted = accept_index.flatten()[accept_index.flatten() >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """In every buffer (its address, and bytes per row) copy rows `src_loc` to `tgt_loc`, which may overlap."""
    if tgt_loc.numel() == 0:
        return
    targets, sources = tgt_loc.numpy().astype(numpy.int64), src_loc.numpy().astype(numpy.int64)
    rows = int(max(targets.max(), sources.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = numpy.frombuffer(memory, dtype=numpy.uint8).reshape(rows, stride)
        # Indexing by an array makes a copy, so all is read before anything is written.
        buffer[targets] = buffer[sources]
