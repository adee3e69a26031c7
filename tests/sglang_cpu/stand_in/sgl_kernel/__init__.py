"""The names of `sgl_kernel` that SGLang 0.5.23 imports on a CPU before it serves anything.

A stand-in for tests only, found by way of PYTHONPATH of the served process and never installed: SGLang's own CPU
kernels are in its repository and not on the package index. All names but one belong to speculative decoding,
which this stand-in does not do; none is called in plain decoding, and one that is called says so.
"""

from typing import NoReturn


def _not_here(*_args: object, **_options: object) -> NoReturn:
    raise NotImplementedError(
        "this sgl_kernel is a stand-in with names only, for plain decoding on a CPU "
        "(tests/sglang_cpu/stand_in): speculative decoding needs SGLang's own kernels"
    )


assign_draft_cache_locs_contiguous_cpu = _not_here
assign_extend_cache_locs_cpu = _not_here
assign_req_to_token_pool_cpu = _not_here
build_tree_kernel_efficient_cpu = _not_here
copy_all_layer_kv_cache_cpu = _not_here
fill_accept_out_cache_loc_cpu = _not_here
fill_bonus_tokens_cpu = _not_here
verify_tree_greedy_cpu = _not_here
