"""CoreHD: dismantling by the highest degree within the 2-core."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normplace.lab.tasks.selection.checks import takes_graph
from normplace.lab.tasks.selection.compiled import compiled, tournament, update_tournament
from normplace.lab.tasks.selection.graph import Graph


@takes_graph
def corehd_order(graph: Graph) -> NDArray[np.int64]:
    """CoreHD: remove the node of highest degree within the 2-core until no cycle is left; then break the trees.

    The trees are broken as in Braunstein et al. (2016): from the largest tree, remove the node that minimizes the
    largest remaining part. :func:`normplace.lab.tasks.selection.reinsert` is the last step. Zdeborová, Zhang,
    Zhou (2016), "Fast and simple decycling and dismantling of networks".
    """
    return _corehd(graph.indptr, graph.indices)


@compiled
def _corehd(indptr, indices):
    num_nodes = len(indptr) - 1
    degree = indptr[1:] - indptr[:-1]
    removed = np.zeros(num_nodes, np.bool_)
    order = np.empty(num_nodes, np.int64)
    stack = np.empty(num_nodes, np.int64)
    top = 0
    for node in range(num_nodes):
        if degree[node] < 2:
            stack[top] = node
            top += 1
            degree[node] = -1  # outside the core
    _peel(indptr, indices, degree, stack, top)
    key = degree.copy()
    tree = tournament(key)
    done = 0
    while key[tree[1]] >= 0:
        node = tree[1]
        if key[node] == degree[node]:
            order[done] = node
            done += 1
            removed[node] = True
            degree[node] = -1
            stack[0] = node
            _peel(indptr, indices, degree, stack, 1)
        key[node] = degree[node]
        update_tournament(tree, key, node)
    _break_trees(indptr, indices, removed, order, done)
    return order


@compiled
def _peel(indptr, indices, degree, stack, top):
    """Remove the nodes on the stack from the core, and all nodes that then have fewer than two neighbors in it."""
    while top > 0:
        top -= 1
        node = stack[top]
        for near in indices[indptr[node] : indptr[node + 1]]:
            if degree[near] >= 0:
                degree[near] -= 1
                if degree[near] < 2:
                    degree[near] = -1
                    stack[top] = near
                    top += 1


@compiled
def _break_trees(indptr, indices, removed, order, done):
    """Fill ``order`` with the nodes of a forest: always the center of a largest tree."""
    num_nodes = len(indptr) - 1
    parent = np.full(num_nodes, -1, np.int64)
    size = np.zeros(num_nodes, np.int64)
    queue = np.empty(num_nodes, np.int64)
    first = np.full(num_nodes + 1, -1, np.int64)  # linked list of trees by size
    following = np.full(num_nodes, -1, np.int64)
    for root in range(num_nodes - 1, -1, -1):
        if not removed[root] and size[root] == 0:
            count = _measure(indptr, indices, removed, root, parent, size, queue)
            following[root] = first[count]
            first[count] = root
    for count in range(num_nodes, 0, -1):
        while first[count] >= 0:
            root = first[count]
            first[count] = following[root]
            _measure(indptr, indices, removed, root, parent, size, queue)
            center, inner = root, True
            while inner:  # descend while a branch has more than half of the nodes
                inner = False
                for near in indices[indptr[center] : indptr[center + 1]]:
                    if not removed[near] and parent[near] == center and 2 * size[near] > count:
                        center, inner = near, True
                        break
            removed[center] = True
            order[done] = center
            done += 1
            for near in indices[indptr[center] : indptr[center + 1]]:
                if not removed[near]:
                    part = size[near] if parent[near] == center else count - size[center]
                    following[near] = first[part]
                    first[part] = near


@compiled
def _measure(indptr, indices, removed, root, parent, size, queue):
    """Compute parents and subtree sizes of the tree of ``root``; return its number of nodes."""
    parent[root] = -1
    queue[0] = root
    tail, head = 1, 0
    while head < tail:
        node = queue[head]
        head += 1
        size[node] = 1
        for near in indices[indptr[node] : indptr[node + 1]]:
            if not removed[near] and near != parent[node]:
                parent[near] = node
                queue[tail] = near
                tail += 1
    for place in range(tail - 1, 0, -1):
        size[parent[queue[place]]] += size[queue[place]]
    return tail
