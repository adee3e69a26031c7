"""The tree of drafts: built, told from a mask, walked along what the target says.

Of each request, node 0 is the root, the last token that is certain. Children of a node are linked in rising order:
`retrive_next_token` is the first child, `retrive_next_sibling` the next one of the same parent, -1 is none. The
spelling is SGLang's, which calls some of these by keyword.
"""

import torch  # type: ignore[import-not-found]

FULL_MASK, NEW_TOKENS_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    _depth: int,
    num_nodes: int,
    tree_mask_mode: int,
) -> None:
    """Links, positions and mask of the tree that the selected drafts make; everything is written in place.

    Node k is the draft `selected_index[k - 1]`. Drafts are numbered as they were made, `topk` of each parent, so
    `draft // topk` is the place of its parent in `parent_list`; place 0 is the root, and any other holds the number
    of the parent's own draft. A node sees its ancestors and itself, and in mode 0 its prefix too.
    """
    if tree_mask_mode not in (FULL_MASK, NEW_TOKENS_ONLY):
        raise NotImplementedError(f"this sgl_kernel is a stand-in for tests and has no packed mask {tree_mask_mode}")
    mask_start = 0
    for request, length in enumerate(seq_lens.tolist()):
        drafts = selected_index[request].tolist()
        parents = [-1]
        for draft in drafts:
            place = draft // topk
            parent = 0 if place == 0 else int(parent_list[request, place])
            # Equal scores may select a draft and not its parent. It is then in no tree, and sees itself alone.
            parents.append(0 if place == 0 else drafts.index(parent) + 1 if parent in drafts else -1)
        seen = _ancestors_and_self(parents)
        _link(request, parents, retrive_index, retrive_next_token, retrive_next_sibling)
        positions.view(-1, num_nodes)[request] = length + seen.sum(dim=1) - 1
        prefix = length if tree_mask_mode == FULL_MASK else 0
        mask = torch.cat([torch.ones(num_nodes, prefix, dtype=torch.bool), seen], dim=1)
        tree_mask[mask_start : mask_start + mask.numel()] = mask.flatten()
        mask_start += mask.numel()


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    num_nodes: int,
) -> None:
    """Links and positions of the tree whose mask is given: n rows of n for each request. Written in place.

    The parent of a node is the nearest ancestor before it. A node without one is a root: no sibling of any other.
    """
    links = [each.view(-1, num_nodes) for each in (retrive_index, retrive_next_token, retrive_next_sibling)]
    masks = tree_mask.view(batch_size, num_nodes, num_nodes).bool()
    for request in range(batch_size):
        ancestors = masks[request].tril(diagonal=-1)
        _link(request, [max(row.nonzero().flatten().tolist(), default=-1) for row in ancestors], *links)
        positions.view(-1, num_nodes)[request] = verified_seq_len[request] + ancestors.sum(dim=1)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree from its root to the child that is what the target says, as long as there is one.

    Written in place: `accept_index`, the indices of the nodes on the way with the root; `accept_token_num`, how
    many came after the root; `predicts`, what the target says at each of them, of which the last is the bonus.
    """
    for request in range(len(candidates)):
        node, count = 0, 0
        while True:
            index = int(retrive_index[request, node])
            said = int(target_predict[request, node])
            predicts[index] = said
            accept_index[request, count] = index
            accept_token_num[request] = count
            if count + 1 == accept_index.shape[1]:
                break
            child = int(retrive_next_token[request, node])
            while child != -1 and int(candidates[request, child]) != said:
                child = int(retrive_next_sibling[request, child])
            if child == -1:
                break
            node, count = child, count + 1


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request, whose tokens begin every `accept_stride` entries."""
    for place, length in enumerate(accept_lens.tolist()):
        bonus_tokens[place] = accept_tokens.flatten()[place * accept_stride + length - 1]


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its `topk_index` at their end, or at `select_index`."""
    for place, (start, length) in enumerate(zip(start_loc.tolist(), seq_lens.tolist(), strict=True)):
        if length == 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        input_ids[end - 1 if select_index is None else int(select_index[place])] = topk_index.flatten()[place]


def _ancestors_and_self(parents: list[int]) -> torch.Tensor:
    """Row i, column j: whether node j is node i or above it. A parent comes before its children."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def _link(
    request: int,
    parents: list[int],
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
) -> None:
    """Write one request's row of each table; an index counts the nodes of the requests before it too."""
    count = len(parents)
    retrive_index[request] = torch.arange(request * count, (request + 1) * count)
    retrive_next_token[request] = -1
    retrive_next_sibling[request] = -1
    youngest: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        if parent in youngest:
            retrive_next_sibling[request, youngest[parent]] = node
        else:
            retrive_next_token[request, parent] = node
        youngest[parent] = node
