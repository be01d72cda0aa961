"""Straightforward versions of the kernels: loops over requests, nodes and slots, as one would explain them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tree:
    """One request's draft tree by plain lists; node 0 is the root."""

    parent: list[int]
    depth: list[int]
    ancestors: list[set[int]]
    children: list[list[int]]


def tree_of(parents: list[int], selected: list[int], topk: int) -> Tree:
    """Build a tree from the candidates chosen and from which candidate each group of topk grew."""
    n = len(selected) + 1
    node_of = {candidate: i + 1 for i, candidate in enumerate(selected)}
    parent = [-1] * n
    for i, candidate in enumerate(selected, 1):
        group = candidate // topk
        parent[i] = 0 if group == 0 else node_of.get(parents[group], -1)
    depth, ancestors = [0] * n, []
    for i in range(n):
        seen, j = {0, i}, i
        while j > 0:
            seen.add(j)
            depth[i] += 1
            j = parent[j]
        ancestors.append(seen)
    children = [[j for j in range(1, n) if parent[j] == i] for i in range(n)]
    return Tree(parent, depth, ancestors, children)


def greedy_path(tree: Tree, tokens: list[int], target: list[int], steps: int) -> list[int]:
    """Return the nodes of the accepted path, root first, at most ``steps`` of them."""
    path = [0]
    while len(path) < steps:
        fitting = [c for c in tree.children[path[-1]] if tokens[c] == target[path[-1]]]
        if not fitting:
            break
        path.append(fitting[0])
    return path


def attention(
    q: Tensor, keys: Tensor, values: Tensor, seen: list[list[int]], scaling: float
) -> Tensor:
    """Attend query by query; ``seen[i]`` lists the KV slots of query i. Computed in float64."""
    heads, kv_heads = q.shape[1], keys.shape[1]
    out = []
    for i, slots in enumerate(seen):
        row = []
        for h in range(heads):
            k = keys[slots, h * kv_heads // heads].double()
            v = values[slots, h * kv_heads // heads].double()
            weight = torch.softmax(k @ q[i, h].double() * scaling, 0)
            row.append(weight @ v)
        out.append(torch.cat(row))
    return torch.stack(out)
