"""Attention over the slots of each request: scaled dot products in float, one request after the other.

What a small Llama does not need (cross-attention, sliding windows, sinks, capped logits) is refused, not ignored.
"""

import torch  # type: ignore[import-not-found]
from torch.nn.functional import scaled_dot_product_attention  # type: ignore[import-not-found]


def decode_attention_cpu(
    query: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    slots: torch.Tensor,
    _logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Store the key and value of one new token of each request, then attend from it to all of the request.

    `seq_lens` counts the new token. `output` is written in place.
    """
    _only_plain(key_scale, value_scale, logit_cap, is_cross_attention, sliding_window, encoder_lens, sinks)
    if key is not None and value is not None:
        key_buffer[slots] = key.view(-1, *key_buffer.shape[1:])
        value_buffer[slots] = value.view(-1, *value_buffer.shape[1:])
    for place, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        seen = req_to_token[row, :length].long()
        output[place] = _attend(query[place, None], key_buffer[seen], value_buffer[seen], None, scaling)[0]


def extend_attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    _max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Attend from the last `extend_seq_lens[i]` tokens of each request to all of it; `output` is written in place.

    The new tokens of request i lie in `query`, `key` and `value` from `extend_start_loc[i]` on, what came before
    them in the buffers (as do they, where `key` is None). They see each other causally, or as `tree_mask` says: n
    rows of n for each request, one after the other. All of them see what came before.
    """
    _only_plain(key_scale, value_scale, logit_cap, is_cross_attention, sliding_window, encoder_lens, sinks)
    if not is_causal:
        raise NotImplementedError("this sgl_kernel is a stand-in for tests: attention is causal or by a tree mask")
    mask_start = 0
    for row, length, new, start in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    ):
        seen = req_to_token[row, :length].long()
        keys, values = key_buffer[seen], value_buffer[seen]
        extent = slice(start, start + new)
        if key is not None and value is not None:
            keys[length - new :] = key[extent].view(-1, *keys.shape[1:])
            values[length - new :] = value[extent].view(-1, *values.shape[1:])
        if tree_mask is None:
            among_new = torch.ones(new, new, dtype=torch.bool).tril()
        else:
            among_new = tree_mask.flatten()[mask_start : mask_start + new * new].view(new, new).bool()
            mask_start += new * new
        mask = torch.cat([torch.ones(new, length - new, dtype=torch.bool), among_new], dim=1)
        output[extent] = _attend(query[extent], keys, values, mask, scaling)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attention of tokens x heads x width, where several heads of the query may share one of keys and values."""
    attended = scaled_dot_product_attention(
        query.transpose(0, 1),
        keys.to(query.dtype).transpose(0, 1),
        values.to(query.dtype).transpose(0, 1),
        attn_mask=mask,
        scale=scaling,
        enable_gqa=True,
    )
    return attended.transpose(0, 1)


def _only_plain(
    key_scale: float,
    value_scale: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    asked = {
        "a scale of keys or values": key_scale != 1.0 or value_scale != 1.0,
        "a cap of logits": logit_cap > 0,
        "cross-attention": is_cross_attention or encoder_lens is not None,
        "a sliding window": sliding_window > 0,
        "sinks": sinks is not None,
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise NotImplementedError(f"this sgl_kernel is a stand-in for tests and has not {what}")
