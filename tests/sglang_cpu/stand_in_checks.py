"""Hold each operation of the stand-in `sgl_kernel` against a naive reference, on seeded random inputs.

Run by `test_stand_in.py` with the interpreter of the SGLang environment and the stand-in on PYTHONPATH, since the
environment that runs the tests has no torch. It prints one JSON object: what is wrong with each operation, or null.
"""

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import sgl_kernel  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask  # type: ignore[import-not-found]

TRIALS = 40
POOL_LEN = 40
ROWS = 6
#: What a tensor holds that an operation must not touch.
UNTOUCHED = -7

Table = list[list[int]]
Check = Callable[[random.Random], None]
CHECKS: dict[str, Check] = {}


def checks(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def same(seen: object, expected: object) -> None:
    """Equal, tensors and lists alike."""
    found = seen.tolist() if isinstance(seen, torch.Tensor) else seen
    if found != expected:
        raise AssertionError(f"seen {found}, expected {expected}")


def close(seen: torch.Tensor, expected: list[list[list[float]]]) -> None:
    if not torch.allclose(seen, torch.tensor(expected), atol=1e-5):
        raise AssertionError(f"seen {seen.tolist()}, expected {expected}")


@dataclass
class Batch:
    """Requests in some rows of a table of slots, none of which two share; each has `room` slots after its tokens."""

    table: Table
    rows: list[int]
    lengths: list[int]


def batch(source: random.Random, room: int) -> Batch:
    slots = source.sample(range(ROWS * POOL_LEN), ROWS * POOL_LEN)
    rows = source.sample(range(ROWS), source.randint(1, 4))
    return Batch(
        table=[slots[row * POOL_LEN : (row + 1) * POOL_LEN] for row in range(ROWS)],
        rows=rows,
        lengths=[source.randint(1, POOL_LEN - room) for _ in rows],
    )


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@checks("assign_req_to_token_pool_cpu")
def _(source: random.Random) -> None:
    given = batch(source, room=8)
    ends = [length + source.randint(0, 8) for length in given.lengths]
    news = [1000 + place for place in range(sum(ends) - sum(given.lengths))]
    table = int32(given.table)
    sgl_kernel.assign_req_to_token_pool_cpu(
        int64(given.rows), table, int64(given.lengths), int64(ends), int64(news), POOL_LEN
    )
    expected, left = [list(row) for row in given.table], list(news)
    for row, length, end in zip(given.rows, given.lengths, ends, strict=True):
        for place in range(length, end):
            expected[row][place] = left.pop(0)
    same(table, expected)


@checks("assign_extend_cache_locs_cpu")
def _(source: random.Random) -> None:
    given = batch(source, room=8)
    ends = [length + source.randint(0, 8) for length in given.lengths]
    count = sum(ends) - sum(given.lengths)
    out = torch.full((count + 2,), UNTOUCHED)
    sgl_kernel.assign_extend_cache_locs_cpu(
        int64(given.rows), int32(given.table), int64(given.lengths), int64(ends), out, POOL_LEN
    )
    expected = [
        given.table[row][place]
        for row, length, end in zip(given.rows, given.lengths, ends, strict=True)
        for place in range(length, end)
    ]
    same(out, [*expected, UNTOUCHED, UNTOUCHED])


@checks("assign_draft_cache_locs_contiguous_cpu")
def _(source: random.Random) -> None:
    topk, steps = source.randint(1, 4), source.randint(1, 4)
    given = batch(source, room=topk * steps)
    out = torch.full((len(given.rows) * topk * steps,), UNTOUCHED)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        int64(given.rows), int32(given.table), int64(given.lengths), out, POOL_LEN, topk, steps
    )
    expected = [
        given.table[row][length + place]
        for row, length in zip(given.rows, given.lengths, strict=True)
        for place in range(topk * steps)
    ]
    same(out, expected)


@checks("build_draft_decode_metadata_cpu")
def _(source: random.Random) -> None:
    topk, steps = source.randint(1, 4), source.randint(1, 4)
    given = batch(source, room=topk * steps)
    table = sgl_kernel.build_draft_decode_metadata_cpu(
        int32(given.table), int64(given.rows), int64(given.lengths), topk, steps, POOL_LEN
    )
    if table.shape != (len(given.rows) * topk, POOL_LEN) or table.dtype != torch.int32:
        raise AssertionError(f"a table of {table.shape}, {table.dtype}")
    for request, (row, length) in enumerate(zip(given.rows, given.lengths, strict=True)):
        for branch in range(topk):
            slots = table[request * topk + branch].tolist()
            for step in range(steps):  # what a branch sees after each of its steps
                own = [given.table[row][length + branch * steps + each] for each in range(step + 1)]
                same(slots[: length + step + 1], given.table[row][:length] + own)


@checks("fill_accept_out_cache_loc_cpu")
def _(source: random.Random) -> None:
    slots = [source.randrange(1000) for _ in range(12)]
    index = [[source.choice([-1, source.randrange(12)]) for _ in range(4)] for _ in range(3)]
    out = torch.full((12,), UNTOUCHED)
    sgl_kernel.fill_accept_out_cache_loc_cpu(int32(index), int64(slots), out)
    expected = [slots[each] for row in index for each in row if each >= 0]
    same(out, expected + [UNTOUCHED] * (12 - len(expected)))


@checks("copy_all_layer_kv_cache_cpu")
def _(source: random.Random) -> None:
    buffers = [torch.rand(20, 2, 3), torch.rand(20, 5).half(), torch.rand(20, 1)]
    count = source.randint(0, 8)
    targets, origins = (source.sample(range(20), count) for _ in range(2))
    expected = []
    for buffer in buffers:
        rows = buffer.tolist()
        moved = buffer.tolist()
        for target, origin in zip(targets, origins, strict=True):
            moved[target] = rows[origin]
        expected.append(moved)
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([each.data_ptr() for each in buffers], dtype=torch.uint64),
        int64([each[0].numel() * each.element_size() for each in buffers]),
        int64(targets),
        int64(origins),
    )
    for buffer, rows in zip(buffers, expected, strict=True):
        same(buffer, rows)


@checks("fill_bonus_tokens_cpu")
def _(source: random.Random) -> None:
    tokens = [[source.randrange(1000) for _ in range(5)] for _ in range(4)]
    lengths = [source.randint(1, 5) for _ in tokens]
    bonus = int32([UNTOUCHED] * 4)
    sgl_kernel.fill_bonus_tokens_cpu(int32(tokens).flatten(), int32(lengths), bonus, 5)
    same(bonus, [row[length - 1] for row, length in zip(tokens, lengths, strict=True)])


@checks("rotate_input_ids_cpu")
def _(source: random.Random) -> None:
    requests = [[source.randrange(1000) for _ in range(source.randint(1, 6))] for _ in range(4)]
    starts = [sum(map(len, requests[:place])) for place in range(4)]
    news = [2000 + place for place in range(4)]
    ends = [[*ids[1:], new] for ids, new in zip(requests, news, strict=True)]
    ids = int64([each for request in requests for each in request])
    lengths = [len(request) for request in requests]
    again = ids.clone()
    sgl_kernel.rotate_input_ids_cpu(ids, int64(starts), int64(lengths), int64(news))
    same(ids, [each for request in ends for each in request])
    # With an index the last id stays, and the new one goes where the index says.
    chosen = [start + source.randrange(length) for start, length in zip(starts, lengths, strict=True)]
    sgl_kernel.rotate_input_ids_cpu(again, int64(starts), int64(lengths), int64(news), int64(chosen))
    expected = [each for request in requests for each in (*request[1:], request[-1])]
    for place, new in zip(chosen, news, strict=True):
        expected[place] = new
    same(again, expected)


@dataclass
class Tree:
    """The drafts that were selected for one request, and what follows from who drafted whom."""

    selected: list[int]
    parent_list: list[int]
    parents: list[int]  # of each node the parent node, -1 of the root

    def above(self, node: int) -> list[int]:
        """The node and its ancestors."""
        return [] if node < 0 else [node, *self.above(self.parents[node])]

    def children(self, node: int) -> list[int]:
        return [each for each in range(len(self.parents)) if self.parents[each] == node]

    def seen(self) -> list[list[bool]]:
        nodes = range(len(self.parents))
        return [[column in self.above(row) for column in nodes] for row in nodes]

    def links(self) -> tuple[list[int], list[int]]:
        """The first child of each node, and its next younger sibling; -1 for none."""
        first = [min(self.children(node), default=-1) for node in range(len(self.parents))]
        sibling = [
            min((each for each in self.children(parent) if each > node), default=-1) if parent >= 0 else -1
            for node, parent in enumerate(self.parents)
        ]
        return first, sibling


def tree(source: random.Random, topk: int, steps: int, nodes: int) -> Tree:
    """Draft as EAGLE does: `topk` of the root, then `topk` of each of `topk` drafts a step; select some of them."""
    parent_of: dict[int, int] = dict.fromkeys(range(topk), -1)  # by number of the draft
    parent_list, last = [-1], list(range(topk))
    for step in range(1, steps):
        chosen = last if step == 1 else sorted(source.sample(last, topk))
        parent_list += chosen
        first = len(parent_of)
        parent_of |= {first + place: chosen[place // topk] for place in range(topk * topk)}
        last = list(range(first, first + topk * topk))
    selected: list[int] = []
    while len(selected) < nodes - 1:
        reachable = [
            draft for draft, parent in parent_of.items() if draft not in selected and parent in (-1, *selected)
        ]
        selected.append(source.choice(reachable))
    selected.sort()
    parents = [-1, *(0 if parent_of[each] < 0 else selected.index(parent_of[each]) + 1 for each in selected)]
    return Tree(selected=selected, parent_list=parent_list, parents=parents)


def trees(source: random.Random) -> tuple[list[Tree], int, int, int]:
    topk, steps = source.randint(1, 4), source.randint(2, 4)
    most = topk + (steps - 1) * topk * topk
    nodes = 1 + source.randint(1, min(most, 9))
    return [tree(source, topk, steps, nodes) for _ in range(source.randint(1, 3))], topk, steps, nodes


def tables(count: int, nodes: int) -> list[torch.Tensor]:
    return [torch.full((count, nodes), -1) for _ in range(3)]


def same_links(given: list[Tree], nodes: int, index: torch.Tensor, first: torch.Tensor, sibling: torch.Tensor) -> None:
    same(index, [[place * nodes + node for node in range(nodes)] for place in range(len(given))])
    same(first, [each.links()[0] for each in given])
    same(sibling, [each.links()[1] for each in given])


@checks("build_tree_kernel_efficient_cpu")
def _(source: random.Random) -> None:
    given, topk, steps, nodes = trees(source)
    lengths = [source.randint(1, 5) for _ in given]
    for mode in (0, 1):
        prefixes = lengths if mode == 0 else [0 for _ in given]
        expected = [
            value
            for each, prefix in zip(given, prefixes, strict=True)
            for row in each.seen()
            for value in (*[True] * prefix, *row)
        ]
        index, first, sibling = tables(len(given), nodes)
        positions = torch.full((len(given) * nodes,), UNTOUCHED)
        mask = torch.full((len(expected),), fill_value=True)
        sgl_kernel.build_tree_kernel_efficient_cpu(
            *(int64([each.parent_list for each in given]), int64([each.selected for each in given]), int64(lengths)),
            *(mask, positions, index, first, sibling, topk, steps, nodes, mode),
        )
        same_links(given, nodes, index, first, sibling)
        same(mask, expected)
        same(
            positions,
            [
                length + len(each.above(node)) - 1
                for each, length in zip(given, lengths, strict=True)
                for node in range(nodes)
            ],
        )


@checks("reconstruct_indices_from_tree_mask")
def _(source: random.Random) -> None:
    given, _, _, nodes = trees(source)
    lengths = [source.randint(1, 5) for _ in given]
    index, first, sibling = tables(len(given), nodes)
    positions = torch.full((len(given) * nodes,), UNTOUCHED)
    mask = torch.tensor([each.seen() for each in given]).flatten()
    reconstruct_indices_from_tree_mask(mask, int64(lengths), positions, index, first, sibling, len(given), nodes)
    same_links(given, nodes, index, first, sibling)
    same(
        positions,
        [length + sum(row) - 1 for each, length in zip(given, lengths, strict=True) for row in each.seen()],
    )


@checks("verify_tree_greedy_cpu")
def _(source: random.Random) -> None:
    given, _, steps, nodes = trees(source)
    # Three tokens, so that drafts are often right and siblings often alike.
    candidates, target = ([[source.randrange(3) for _ in range(nodes)] for _ in given] for _ in range(2))
    index = int64([[place * nodes + node for node in range(nodes)] for place in range(len(given))])
    predicts = int32([UNTOUCHED] * (len(given) * nodes))
    accepted, count = int32([[-1] * (steps + 1)] * len(given)), int32([UNTOUCHED] * len(given))
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=count,
        candidates=int64(candidates),
        retrive_index=index,
        retrive_next_token=int64([each.links()[0] for each in given]),
        retrive_next_sibling=int64([each.links()[1] for each in given]),
        target_predict=int64(target),
    )
    said = [UNTOUCHED] * (len(given) * nodes)
    for place, each in enumerate(given):
        way = [0]
        while right := [
            child for child in each.children(way[-1]) if candidates[place][child] == target[place][way[-1]]
        ]:
            way.append(right[0])
        for node in way:
            said[place * nodes + node] = target[place][node]
        same(accepted[place], [place * nodes + node for node in way] + [-1] * (steps + 1 - len(way)))
        same(count[place].item(), len(way) - 1)
    same(predicts, said)


HEADS, SHARED, WIDTH, SCALING = 4, 2, 3, 0.6


def attended(query: list[list[float]], keys: torch.Tensor, values: torch.Tensor) -> list[list[float]]:
    """Attention of one token to all of these, by the definition; two heads of the query share one of the keys."""
    out: list[list[float]] = []
    for head, asked in enumerate(query):
        shared = head * SHARED // HEADS
        weights = [
            math.exp(SCALING * sum(a * b for a, b in zip(asked, key[shared], strict=True))) for key in keys.tolist()
        ]
        out.append(
            [
                sum(weight * value[shared][place] for weight, value in zip(weights, values.tolist(), strict=True))
                / sum(weights)
                for place in range(WIDTH)
            ]
        )
    return out


def plain() -> tuple[float, float, bool, int, None, None]:
    """What a Llama has not: no cap of logits, cross-attention, sliding window, encoder, sinks."""
    return SCALING, 0.0, False, 0, None, None


@checks("decode_attention_cpu")
def _(source: random.Random) -> None:
    given = batch(source, room=1)
    lengths = [length + 1 for length in given.lengths]
    keys, values = torch.rand(2, ROWS * POOL_LEN, SHARED, WIDTH)
    key, value = torch.rand(2, len(given.rows), SHARED, WIDTH)
    query = torch.rand(len(given.rows), HEADS, WIDTH)
    output = torch.zeros_like(query)
    new = [given.table[row][length - 1] for row, length in zip(given.rows, lengths, strict=True)]
    stored = keys.clone(), values.clone()
    for place, slot in enumerate(new):
        stored[0][slot], stored[1][slot] = key[place], value[place]
    torch.ops.sgl_kernel.decode_attention_cpu(
        *(query, keys, values, 1.0, 1.0, output, key, value, int64(new), torch.empty(0)),
        *(int32(given.table), int64(given.rows), int64(lengths), *plain()),
    )
    same(keys, stored[0].tolist())
    same(values, stored[1].tolist())
    expected = []
    for place, (row, length) in enumerate(zip(given.rows, lengths, strict=True)):
        slots = given.table[row][:length]
        expected.append(attended(query[place].tolist(), stored[0][slots], stored[1][slots]))
    close(output, expected)


@checks("extend_attention_cpu")
def _(source: random.Random) -> None:
    nodes = source.randint(1, 6)
    given = batch(source, room=nodes)
    by_tree = source.random() < 0.5
    drafted = [tree(source, 3, 2, nodes) for _ in given.rows]
    news = [nodes if by_tree else source.randint(1, nodes) for _ in given.rows]
    lengths = [length + new for length, new in zip(given.lengths, news, strict=True)]
    starts = [sum(news[:place]) for place in range(len(news))]
    keys, values = torch.rand(2, ROWS * POOL_LEN, SHARED, WIDTH)
    key, value = torch.rand(2, sum(news), SHARED, WIDTH)
    query = torch.rand(sum(news), HEADS, WIDTH)
    mask = torch.tensor([each.seen() for each in drafted]).flatten() if by_tree else None
    full = keys.clone(), values.clone()
    expected = []
    for place, (row, before, new) in enumerate(zip(given.rows, given.lengths, news, strict=True)):
        own = given.table[row][before : before + new]
        extent = slice(starts[place], starts[place] + new)
        full[0][own], full[1][own] = key[extent], value[extent]
        for token in range(new):
            others = drafted[place].above(token) if by_tree else range(token + 1)
            slots = given.table[row][:before] + [own[each] for each in others]
            expected.append(attended(query[starts[place] + token].tolist(), full[0][slots], full[1][slots]))
    for stored, own_key, own_value in ((False, key, value), (True, None, None)):  # new ones given, or in the buffers
        output = torch.zeros_like(query)
        torch.ops.sgl_kernel.extend_attention_cpu(
            *(query, own_key, own_value, output, *(full if stored else (keys, values)), 1.0, 1.0),
            *(int32(given.table), int64(given.rows), int64(lengths), int32(news), int32(starts), max(news)),
            *(*plain(), mask, True),
        )
        close(output, expected)


def main() -> None:
    wrong: dict[str, str | None] = {}
    for name, check in CHECKS.items():
        torch.manual_seed(20)
        source = random.Random(20)
        try:
            for _ in range(TRIALS):
                check(source)
            wrong[name] = None
        except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:2000]
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    main()
