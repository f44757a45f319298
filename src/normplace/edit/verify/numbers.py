"""Verify a moved model by numbers, against the definition of its placement.

The analysis reads the positions of norms from the operators of a pass, so it cannot find its own mistakes. These checks
measure what a placement promises:

- A placed norm returns normalized features.
- A norm on the sum reads the whole sum, and nothing is added after it.
- A branch with an input norm reads the stream only through that norm.
- Removed norms are not part of the model.

:mod:`normplace.edit.verify.gradients` checks the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.operators import ADDS, MOVES, RESHAPES
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import BlockIndex, NodeId, ValueId
from normplace.analysis.residuals.reachability import Landmarks, ResidualAdd
from normplace.edit.model.model_map import block_label
from normplace.edit.record.changes import Change
from normplace.edit.verify.capture import Arguments, capture_values
from normplace.errors import UsageError

NORMALIZING = ("layer", "rms", "l2")
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Rounding error of an affine map or a sum, relative to its largest entry."""


def verify_numbers(
    analysis: Analysis, arguments: Arguments, changes: Sequence[Change], removed: Mapping[str, nn.Module]
) -> None:
    """Compare a moved model with the definition of its placement.

    Raises:
        UsageError: If a check fails, with the name of the module.
    """
    check_removed(analysis.model, removed, [change.name for change in changes if change.action == "removed"])
    placed = {change.name: change for change in changes if change.action != "removed" and change.slot != "scale"}
    pairs = [
        (norm, site, placed[name])
        for norm, site in zip(analysis.norms, analysis.sites, strict=True)
        for name in _with_parents(site.name) & placed.keys()
    ]
    new = [(norm, site, change) for norm, site, change in pairs if change.action != "kept"]
    unused = {name for name, change in placed.items() if change.action != "kept"} - {change.name for *_, change in new}
    for name in sorted(unused):
        raise UsageError(f"after the move {name!r} normalizes nothing, so the move is refused: check its code.")
    on_sums = [(norm, _summing_block(analysis, norm, change)) for norm, _, change in new if change.slot == "stream"]
    check_nothing_added_after(analysis, on_sums)
    check_read_through_norm(
        analysis,
        {BlockIndex(site.block) for _, site, change in new if change.slot == "input" and site.block is not None},
    )
    if any(parameter.is_meta for parameter in analysis.model.parameters()):
        return  # a model on the meta device has no numbers
    chosen = {value for norm, *_ in pairs for value in (norm.input, norm.output)}
    for _, block in on_sums:
        chosen |= _operands(analysis, block)
    tensors = capture_values(analysis, arguments, chosen)
    for norm, site, _ in pairs:
        check_statistics(site.name, norm, tensors)
    for norm, block in on_sums:
        check_sum(analysis, norm, block, tensors)


def _with_parents(name: str) -> set[str]:
    """The names of a module and of the modules that contain it."""
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def _summing_block(analysis: Analysis, norm: Norm, change: Change) -> BlockIndex:
    """The block whose sum a norm reads."""
    reachability = analysis.reachability
    sums = reachability.plain.get(norm.input, 0) & reachability.sums
    if not sums:
        raise UsageError(f"after the move {change.name!r} does not read a residual sum, so the move is refused.")
    return analysis.block_of[analysis.add_of_sum[reachability.latest(sums)]]


def check_removed(model: nn.Module, removed: Mapping[str, nn.Module], names: Iterable[str]) -> None:
    """Check that removed norms are not part of the model and share no parameter with it."""
    modules, parameters = set(model.modules()), set(model.parameters())
    for name in names:
        norm = removed.get(name)
        if norm is not None and (norm in modules or parameters & set(norm.parameters())):
            raise UsageError(f"{name!r} was removed but is still part of the model: give each layer its own norm.")


def check_statistics(name: str, norm: Norm, tensors: Mapping[ValueId, Tensor]) -> None:
    """Check that a norm returns its normalized input, up to one gain and shift per feature.

    Raises:
        UsageError: If it does not.
    """
    x, y = tensors.get(norm.input), tensors.get(norm.output)
    if norm.kind not in NORMALIZING or x is None or y is None or x.numel() != y.numel():
        return
    views = [y.reshape(x.shape)]
    if y.ndim == x.ndim > 2 and y.movedim(1, -1).shape == x.shape:  # permuted back to channels first
        views.append(y.movedim(1, -1))
    fits = _is_affine_in if norm.affine else _is_equal
    is_checked = False
    for normalized, axis in _normalized(x, norm):
        if any(fits(normalized, view, axis) for view in views):
            return
        is_checked = True
    if is_checked:
        raise UsageError(
            f"{name!r} does not return normalized features ({norm.kind}), so the move cannot be verified: make the "
            "norm a module that divides by the root of the mean square or variance."
        )


def _normalized(x: Tensor, norm: Norm) -> Iterator[tuple[Tensor, int]]:
    """The normalized input by definition, for each set of dimensions that can hold features, and the feature axis."""
    wide = x.double()
    for dims, axis in (((-1,), -1), ((1,), 1), ((-2, -1), -1), ((-3, -2, -1), -1)):
        if x.ndim <= max(dims[-1], -dims[0]) or math.prod(x.shape) // math.prod(x.shape[dim] for dim in dims) < 2:
            continue  # with a single statistic any factor fits
        centred = wide - wide.mean(dims, keepdim=True) if norm.kind == "layer" else wide
        square = centred.square()
        statistic = square.sum(dims, keepdim=True) if norm.kind == "l2" else square.mean(dims, keepdim=True)
        yield centred / (statistic + (norm.eps or 0.0)).sqrt().clamp(min=1e-30), axis


def _is_equal(z: Tensor, y: Tensor, axis: int) -> bool:
    error = (z - y.double()).abs().max()
    return bool(error <= TOLERANCE.get(y.dtype, 1e-3) * z.abs().max().clamp(min=1e-30))


def _is_affine_in(z: Tensor, y: Tensor, axis: int) -> bool:
    """Whether ``y`` is ``gain * z + shift`` with one gain and shift per feature, by least squares."""
    tolerance = TOLERANCE.get(y.dtype, 1e-3)
    y = y.double().movedim(axis, -1).flatten(0, -2)
    z = z.movedim(axis, -1).flatten(0, -2)
    centred_z, centred_y = z - z.mean(0), y - y.mean(0)
    gain = (centred_z * centred_y).sum(0) / centred_z.square().sum(0).clamp(min=1e-30)
    error = (centred_y - gain * centred_z).abs().max()
    return bool(error <= tolerance * y.abs().max().clamp(min=1e-30))


def _operands(analysis: Analysis, block: BlockIndex) -> set[ValueId]:
    """The summands and sums of a block."""
    values = {value for _, value in analysis.branches_of(block)}
    for add in analysis.adds_of(block):
        values |= {add.skip, add.output}
    return values


def check_sum(analysis: Analysis, norm: Norm, block: BlockIndex, tensors: Mapping[ValueId, Tensor]) -> None:
    """Check that the input of a norm on the sum is the skip plus every branch."""
    adds = analysis.adds_of(block)
    nodes = [analysis.graph.nodes[add.node] for add in adds]
    if any(node.name != "add" or node.op is None or node.op.kwargs.get("alpha", 1) != 1 for node in nodes):
        return  # gated or scaled, so the operands are not the summands
    values = [adds[0].skip, *(value for _, value in analysis.branches_of(block))]
    # Norms over the channels of feature maps read a permuted view of the sum.
    views = [tensors[value] for value in analysis.graph.unchanged(norm.input, RESHAPES) if value in tensors]
    summed = views[-1] if views else None
    if summed is None or any(value not in tensors for value in values):
        return  # part of a fused operator
    total = sum((tensors[value].double() for value in values), torch.zeros((), dtype=torch.float64))
    if total.numel() != summed.numel():
        return  # one of them is broadcast
    error = (total.reshape(summed.shape) - summed.double()).abs().max()
    if error > TOLERANCE.get(summed.dtype, 1e-3) * summed.double().abs().max():
        raise _not_whole(analysis, block, "it does not equal the skip plus the branches")


def check_skip_scales(analysis: Analysis, arguments: Arguments, scales: Mapping[BlockIndex, float]) -> None:
    """Check that the skips of blocks are the stream times a fixed scale.

    Raises:
        UsageError: If one is not.
    """
    adds = {block: analysis.adds_of(block)[0] for block in scales}
    tensors = capture_values(analysis, arguments, {value for add in adds.values() for value in (add.skip, add.fork)})
    for block, add in adds.items():
        skip, stream = tensors.get(add.skip), tensors.get(add.fork)
        if skip is None or stream is None or skip.shape != stream.shape:
            continue  # on the meta device
        error = (skip.double() - scales[block] * stream.double()).abs().max()
        if error > TOLERANCE.get(skip.dtype, 1e-3) * skip.double().abs().max():
            raise UsageError(
                f"after the move the skip of block {block_label(analysis, block)} is not the stream times "
                f"{scales[block]:.4g}, so the move is refused: write the block as x + branch(x)."
            )


def check_nothing_added_after(analysis: Analysis, on_sums: Sequence[tuple[Norm, BlockIndex]]) -> None:
    """Check that no other branch of the same stream is added between a norm on the sum and the next block."""
    graph, reachability = analysis.graph, analysis.reachability
    norm_nodes = {node for norm in analysis.norms for node in norm.nodes}
    add_nodes = {add.node for add in analysis.adds}
    streams = _streams_until(analysis)
    for norm, block in on_sums:
        own_stream, own_bit = streams[block], reachability.bit.get(norm.output, 0)
        queue, seen = [norm.output], set()
        while queue:
            value = queue.pop()
            for node_id in graph.consumers.get(value, ()):
                node = graph.nodes[node_id]
                if node_id in seen or node_id in norm_nodes or graph.is_barrier(node):
                    continue
                seen.add(node_id)
                for other in graph.data_inputs(node) if node.name in ADDS or node.name == "sub" else ():
                    sources = reachability.any.get(other, 0)
                    if other != value and sources & own_stream and not sources & own_bit:
                        path = graph.path(node) or "the model"
                        raise _not_whole(analysis, block, f"{path!r} adds another branch after it")
                queue += () if node_id in add_nodes else node.outputs


def _streams_until(analysis: Analysis) -> list[Landmarks]:
    """For each block the values of its stream up to it."""
    reachability, until = analysis.reachability, []
    streams: dict[int, Landmarks] = {}
    for index, block in enumerate(analysis.blocks):
        for add in analysis.adds_of(BlockIndex(index)):
            landmarks = reachability.bit[add.output] | reachability.bit.get(add.fork, 0)
            streams[block.stream] = streams.get(block.stream, 0) | landmarks
        until.append(streams[block.stream])
    return until


def check_read_through_norm(analysis: Analysis, blocks: Iterable[BlockIndex]) -> None:
    """Check that the branches of blocks read the stream only through their input norms."""
    graph = analysis.graph
    norm_nodes = {node for norm in analysis.norms for node in norm.nodes}
    input_norm_nodes: dict[int | None, set[NodeId]] = {}
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        if site.slot == "input":
            input_norm_nodes.setdefault(site.block, set()).update(norm.nodes)
    for block in sorted(blocks):
        for add in analysis.adds_of(block):
            for node_id in _stream_readers(analysis, add, norm_nodes):
                if node_id not in input_norm_nodes.get(block, ()):
                    path = graph.path(graph.nodes[node_id]) or "the model"
                    raise UsageError(
                        f"after the move {path!r} reads the stream without the input norm of block "
                        f"{block_label(analysis, block)}, so the move is refused: pass it the output of the norm."
                    )


def _stream_readers(analysis: Analysis, add: ResidualAdd, norm_nodes: Set[NodeId]) -> Iterator[NodeId]:
    """The nodes of a branch that read the stream or a view of it."""
    graph, region = analysis.graph, analysis.regions.of(add)
    queue, seen = [add.fork], set()
    while queue:
        for node_id in graph.consumers.get(queue.pop(), ()):
            if node_id not in region or node_id in seen:
                continue
            seen.add(node_id)
            node = graph.nodes[node_id]
            if node.name in MOVES and node_id not in norm_nodes:
                queue += node.outputs
            else:
                yield node_id


def _not_whole(analysis: Analysis, block: BlockIndex, reason: str) -> UsageError:
    return UsageError(
        f"a norm on the sum of block {block_label(analysis, block)} would not read the whole sum, because {reason}: "
        "write the block as one sum, or choose a placement without a norm on the sum."
    )
