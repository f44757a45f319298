"""Norms, known by what they do: a value divided by a statistic of itself.

PyTorch's own norm operators are taken at their word. Any other norm shows itself by its arithmetic: somewhere a root is
taken of reduced squares of x, and x, or x less its mean, is divided by that root. Class names play no part. A softmax divides by a
sum of exponentials, routing weights by a plain sum, a quantizer by a largest value: none of them is a norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from normplace.audit.trace import CASTS, MOVES, REDUCTIONS, RESHAPES, SPREADS, Graph, Node, argument, constant

# Operator, kind, position of eps, position of gain.
FUSED = {
    "native_layer_norm": ("layer", 4),
    "_fused_rms_norm": ("rms", 3),
    "native_group_norm": ("group", 7),
    "native_batch_norm": ("batch", 7),
    "_native_batch_norm_legit": ("batch", 7),
    "_native_batch_norm_legit_no_training": ("batch", 6),
    "_batch_norm_with_update": ("batch", 6),
    "_batch_norm_no_update": ("batch", 6),
    "cudnn_batch_norm": ("batch", 7),
    "miopen_batch_norm": ("batch", 7),
    "batch_norm": ("batch", 7),
    "layer_norm": ("layer", 4),
    "rms_norm": ("rms", 3),
}
ROOTS = {"rsqrt", "sqrt", "linalg_vector_norm", "norm", "std", "std_mean"}
SQUASHERS = {"tanh", "erf", "sigmoid", "atan", "softsign"}
SHIFTS = {"add", "clamp", "clamp_min", "maximum"}
EVEN = {"square", "abs", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"}
SQUASH = "squash"


@dataclass(frozen=True)
class Norm:
    """One norm of the graph.

    Attributes:
        kind: ``layer``, ``rms``, ``l2``, ``batch``, ``group``, ``instance``, ``graph``, or ``squash`` for an elementwise stand-in.
        input: The value it normalizes.
        output: What it returns, gain and shift included.
        nodes: The nodes that make it up.
        core: The node that divides.
        call: The module call that divides.
        eps: What it adds under, or to, its root; None where it has none.
        precision: The dtype its statistics are taken in.
        variance: The smallest and largest squared statistic seen, eps excluded.
        affine: Whether it has a gain.
    """

    kind: str
    input: int
    output: int
    nodes: frozenset[int]
    core: int
    call: int
    eps: float | None = None
    precision: torch.dtype = torch.float32
    variance: tuple[float, float] | None = None
    affine: bool = False

    @property
    def erases_scale(self) -> bool:
        """Whether a positive factor of each row is divided out, which norms over rows keep."""
        return self.kind in ("layer", "rms", "l2")


def find_norms(graph: Graph) -> list[Norm]:
    """Every norm of the graph in the order of the pass."""
    found: dict[int, Norm] = {}
    for at, node in enumerate(graph.nodes):
        norm = None
        if node.name in FUSED:
            norm = _fused(graph, at, node)
        elif node.name in ROOTS or (node.name == "pow" and constant(node, graph) in (0.5, -0.5)):
            norm = _divided(graph, at, node)
        elif node.name in SQUASHERS:
            norm = _squasher(graph, at, node)
        if norm is not None and norm.core not in found:
            found[norm.core] = _with_gain(graph, norm)
    return [found[core] for core in sorted(found)]


def _fused(graph: Graph, at: int, node: Node) -> Norm | None:
    kind, place = FUSED[node.name]
    if not graph.is_data(node.inputs[0]) and graph.values[node.inputs[0]].origin == "parameter":
        return None
    eps = argument(node, place, key="eps")
    eps = float(eps) if isinstance(eps, int | float) and not isinstance(eps, bool) else None
    value = graph.values[node.inputs[0]]
    if node.name == "native_batch_norm" and value.shape[:1] == (1,) and len(node.inputs) == 1:
        kind = "instance"
    if kind == "group" and argument(node, 6) == argument(node, 4):
        kind = "instance"
    if kind == "rms" and eps is None:
        eps = torch.finfo(value.dtype).eps
    # Every fused kernel keeps its statistics in float32 at least.
    precision = torch.promote_types(value.dtype, torch.float32)
    variance = None
    if kind in ("layer", "rms") and len(node.outputs) > 1:
        extent = graph.values[node.outputs[-1]].extent
        if extent is not None and extent[0] > 0:
            variance = (max(extent[1] ** -2 - (eps or 0), 0.0), max(extent[0] ** -2 - (eps or 0), 0.0))
    return Norm(
        kind, node.inputs[0], node.outputs[0], frozenset({at}), at, node.call, eps, precision, variance, len(node.inputs) > 1
    )  # fmt: skip


@dataclass(frozen=True)
class _Statistic:
    """What a root was taken of: possible sources, the nodes between, and how it was reduced."""

    sources: frozenset[int]
    nodes: frozenset[int]
    eps: float | None
    names: frozenset[str]
    reduced: Node | None
    precision: torch.dtype
    buffers: bool


def _statistic(graph: Graph, at: int, root: Node) -> _Statistic:
    """Walk back from a root to what it is a statistic of."""
    sources: set[int] = set()
    nodes, names = {at}, set()
    eps, reduction, precision, buffers = None, None, torch.float64, False
    start = (root.name in REDUCTIONS, root.name in EVEN)
    if start[0]:
        reduction, precision = root, graph.values[root.inputs[0]].dtype
        names.add(root.name)
    queue, seen = [(root.inputs[0], *start)], set()
    while queue:
        value, reduced, even = queue.pop()
        if (value, reduced, even) in seen:
            continue
        seen.add((value, reduced, even))
        if reduced and even:
            sources.add(value)
        buffers |= graph.values[value].origin == "buffer"
        index = graph.producer.get(value)
        if index is None:
            continue
        node = graph.nodes[index]
        steps = _back(graph, node, reduced)
        if steps is None:
            continue
        if node.name in SHIFTS and len(graph.data_inputs(node)) <= 1 and not (reduced and even):
            number = constant(node, graph)
            eps = number if number is not None and number > 0 else eps
        if node.name in REDUCTIONS and reduction is None:
            reduction = node
        if node.name in REDUCTIONS | SPREADS:
            wide = graph.values[node.outputs[0]].dtype
            precision = min(precision, wide, key=lambda dtype: torch.finfo(dtype).bits)
        names.add(node.name)
        nodes.add(index)
        squares = node.name in EVEN or (node.name == "pow" and constant(node, graph) == 2) or _squared(graph, node)
        folds = node.name in REDUCTIONS | SPREADS
        queue += [(step, reduced or folds, even or squares) for step in steps]
    return _Statistic(frozenset(sources), frozenset(nodes), eps, frozenset(names), reduction, precision, buffers)


def _back(graph: Graph, node: Node, reduced: bool) -> list[int] | None:
    """Where the walk goes on from a node, None where it ends."""
    if node.name in MOVES | REDUCTIONS | SPREADS | {"pow", "square", "abs", "sub", "rsub", "real", "_fft_r2c"} - {
        "_fft_r2c"
    }:
        return [number for number in node.inputs if graph.values[number].dtype.is_floating_point]
    if node.name in SHIFTS and len(graph.data_inputs(node)) <= 1:
        return list(node.inputs)
    if node.name in ("mul", "div"):
        if _squared(graph, node) or len(graph.data_inputs(node)) <= 1 or reduced is False:
            return list(node.inputs)
    return None


def _squared(graph: Graph, node: Node) -> bool:
    if node.name != "mul" or not node.inputs:
        return False
    if len(node.inputs) == 1:
        return node.op is not None and node.op.args[0] == node.op.args[1]
    first, second = (set(graph.unchanged(number, CASTS)) for number in node.inputs[:2])
    return bool(first & second)


def _divided(graph: Graph, at: int, root: Node) -> Norm | None:
    """The norm that divides by this root, if one does."""
    statistic = _statistic(graph, at, root)
    if not statistic.sources and not statistic.buffers:
        return None
    inverse = root.name == "rsqrt" or (root.name == "pow" and constant(root, graph) == -0.5)
    queue = [(root.outputs[0], inverse, statistic.eps, statistic.nodes)]
    while queue:
        value, inverse, eps, nodes = queue.pop(0)
        for index in graph.consumers.get(value, ()):
            node = graph.nodes[index]
            inside = nodes | {index}
            other = [number for number in node.inputs if number != value]
            if node.name in ("mul", "div") and other and graph.is_features(other[0]):
                right = inverse if node.name == "mul" else (not inverse and node.inputs[-1] == value)
                source = _numerator(graph, other[0], statistic) if right else None
                if source is not None:
                    return _make(graph, index, inside | source[1], root, statistic, source, eps)
            elif node.name in SHIFTS and not graph.data_inputs(node)[1:]:
                queue.append((node.outputs[0], inverse, constant(node, graph) or eps, inside))
            elif node.name == "reciprocal" or (node.name == "pow" and constant(node, graph) == -1):
                queue.append((node.outputs[0], not inverse, eps, inside))
            elif node.name in MOVES | {"mul"} and not other[1:]:
                queue.append((node.outputs[0], inverse, eps, inside))
            elif node.name == "div" and node.inputs[0] == value:
                queue.append((node.outputs[0], inverse, eps, inside))
            elif node.name == "div":
                queue.append((node.outputs[0], not inverse, eps, inside))
    return None


def _numerator(graph: Graph, value: int, statistic: _Statistic) -> tuple[int, frozenset[int], bool] | None:
    """The value whose statistic divides it, the nodes between, and whether its mean was taken off."""
    best, nodes, centred = None, set(), False
    while True:
        if value in statistic.sources:
            best = (value, frozenset(nodes), centred)
        elif statistic.buffers and best is None and not statistic.sources:
            return value, frozenset(), True
        index = graph.producer.get(value)
        node = None if index is None else graph.nodes[index]
        if node is None or index is None or not node.inputs:
            return best
        if node.name == "sub" and len(node.inputs) == 2:
            centred = centred or best is None or value in statistic.sources
        elif node.name == "mul" and best is None and len(data := graph.data_inputs(node)) == 1:
            nodes.add(index)
            value = data[0]
            continue
        elif node.name not in CASTS | RESHAPES:
            return best
        if node.name in RESHAPES and best is not None:
            return best
        nodes.add(index)
        value = node.inputs[0]


def _make(
    graph: Graph,
    core: int,
    nodes: frozenset[int],
    root: Node,
    statistic: _Statistic,
    source: tuple[int, frozenset[int], bool],
    eps: float | None,
) -> Norm:
    value, _, centred = source
    names = statistic.names
    centred = centred or bool(names & {"var", "var_mean", "std", "std_mean"})
    if statistic.buffers and not statistic.sources:
        kind = "batch"
    elif names & SPREADS:
        kind = "graph"
    elif not _over_features(graph, statistic.reduced, value):
        kind = "batch"
    elif centred:
        kind = "layer"
    else:
        kind = "rms" if "mean" in names else "l2"
    extent = graph.values[root.inputs[0]].extent
    variance = None
    if extent is not None and root.name not in REDUCTIONS:
        inside = statistic.eps or 0.0
        variance = (max(extent[0] - inside, 0.0), max(extent[1] - inside, 0.0))
    precision = (
        min(statistic.precision, graph.values[value].dtype, key=_bits) if names & {"sub"} else statistic.precision
    )
    precision = statistic.precision if statistic.precision != torch.float64 else precision
    node, start = graph.nodes[core], graph.producer.get(value, -1)
    inside = frozenset(at for at in nodes | {core} if at > start)  # the walk back may have gone past the input
    return Norm(kind, value, node.outputs[0], inside, core, node.call, eps, precision, variance)


def _bits(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits


def _over_features(graph: Graph, reduction: Node | None, value: int) -> bool:
    """Whether a reduction runs over the last dimension, or over all, rather than over rows alone."""
    if reduction is None:
        return True
    rank = len(graph.values[reduction.inputs[0]].shape)
    at = 2 if reduction.name in ("linalg_vector_norm", "norm") else 1
    dims = argument(reduction, at, key="dim")
    if isinstance(dims, int) and not isinstance(dims, bool):
        dims = (dims,)
    if not isinstance(dims, tuple) or not dims or not all(isinstance(dim, int) for dim in dims):
        return True
    last = {dim % rank for dim in dims}
    # Images keep their features first, so that a reduction over dimension 1 alone runs over features too.
    return rank - 1 in last or last == {1} or rank == 1


def _with_gain(graph: Graph, norm: Norm) -> Norm:
    """The norm with the casts, gain and shift that follow it in the same module call."""
    output, nodes, gain, shift = norm.output, set(norm.nodes), norm.affine, False
    while True:
        ahead = graph.consumers.get(output, [])
        if len(ahead) != 1 or output in graph.tape.outputs:
            break
        node = graph.nodes[ahead[0]]
        if node.call != norm.call or len(graph.data_inputs(node)) > 1:
            break
        if node.name in ("mul", "add"):
            learned = [number for number in node.inputs if not graph.is_data(number)]
            constants = constant(node, graph)
            if constants is not None or not learned or (gain and shift):
                break
            gain, shift = gain or node.name == "mul", shift or node.name == "add"
        elif node.name not in CASTS | RESHAPES:
            break
        nodes.add(ahead[0])
        output = node.outputs[0]
    return replace(norm, output=output, nodes=frozenset(nodes), affine=gain)


def _squasher(graph: Graph, at: int, node: Node) -> Norm | None:
    """``gain * squash(alpha * x) + shift`` with a learned alpha and gain, which stands where a norm would."""
    if not graph.is_features(node.inputs[0]):
        return None
    inside, value = {at}, node.inputs[0]
    for name in ("add", "mul"):
        index = graph.producer.get(value)
        before = None if index is None else graph.nodes[index]
        if before is None or index is None or before.name != name or len(before.inputs) != 2:
            if name == "mul":
                return None
            continue
        data = graph.data_inputs(before)
        learned = [number for number in before.inputs if number not in data]
        if len(data) != 1 or not learned or not _is_learned(graph, learned[0]):
            return None
        inside.add(index)
        value = data[0]
    for index in graph.consumers.get(node.outputs[0], ()):
        after = graph.nodes[index]
        if after.name == "mul" and any(_is_learned(graph, number) for number in after.inputs):
            return Norm(SQUASH, value, node.outputs[0], frozenset(inside), at, node.call)
    return None


def _is_learned(graph: Graph, value: int) -> bool:
    return any(graph.values[number].origin == "parameter" for number in graph.unchanged(value))
