"""What of `sgl_kernel` SGLang 0.5.23 uses when it serves a small text model on a CPU, with or without drafts.

A stand-in for tests only, found by way of PYTHONPATH of the served process and never installed: SGLang's own CPU
kernels are in its repository and not on the package index. Written from what the operations have to do, in plain
torch, for servers that are slow anyway; `tests/sglang_cpu/test_stand_in.py` holds each against a naive reference.

Everywhere `req_to_token[r, i]` is the slot in the cache of token i of the request in row r.
"""

import torch  # type: ignore[import-not-found]

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.speculative import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang takes these two from torch's table of operations. An attribute is enough: nothing traces or compiles them.
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
