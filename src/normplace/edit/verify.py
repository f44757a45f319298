"""A moved model compared with the definition of its placement, by numbers.

The audit reads where norms are from the operators of a pass; a norm that it misreads would be verified by its own
mistake. So these checks measure what a placement promises: a placed norm returns normalized rows, a norm on the sum
reads the whole sum and nothing is added behind it, a branch with an input norm reads the stream through it alone, every
placed norm and kept parameter receives a gradient, and removed norms are not part of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from normplace.analysis.dataflow.operators import ADDS, MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.edit.changes import Change
from normplace.edit.model_map import ModelMap, label
from normplace.errors import UsageError

NORMALIZING = ("layer", "rms", "l2")
# Relative to the largest entry: what rounding leaves of an affine map or a sum in each precision.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}


def verify_numbers(located: ModelMap, record: Sequence[Change], removed: Mapping[str, nn.Module]) -> None:
    """Compare a moved model with the definition of its placement.

    Args:
        located: A recorded pass of the moved model.
        record: What was done to each norm.
        removed: The norms that were taken out, by the name they had.

    Raises:
        UsageError: If a check fails, with the module's name.
    """
    placed = {change.name: change for change in record if change.action != "removed" and change.slot != "scale"}
    check_gone(located.model, removed, [change.name for change in record if change.action == "removed"])
    pairs = [
        (norm, site, placed[name])
        for norm, site in zip(located.norms, located.audit.sites, strict=True)
        for name in _parents(site.name) & placed.keys()
    ]
    new = [(norm, site, change) for norm, site, change in pairs if change.action != "kept"]
    idle = {name for name, change in placed.items() if change.action != "kept"} - {change.name for *_, change in new}
    for name in sorted(idle):
        raise UsageError(f"after the move {name!r} normalizes nothing, so the move is refused: check its code.")
    streams = [(norm, _summing_block(located, norm, change)) for norm, _, change in new if change.slot == "stream"]
    check_nothing_added_behind(located, streams)
    check_read_through(
        located, {site.block for _, site, change in new if change.slot == "input" and site.block is not None}
    )
    if any(parameter.is_meta for parameter in located.model.parameters()):
        return  # there are no numbers
    wanted = {value for norm, *_ in pairs for value in (norm.input, norm.output)}
    for _, block in streams:
        wanted |= set(_operands(located, block))
    tensors = located.values(wanted)
    for norm, site, _ in pairs:
        check_statistics(site.name, norm, tensors)
    for norm, block in streams:
        check_sum(located, norm, block, tensors)


def _parents(name: str) -> set[str]:
    """A module's name and those of the modules around it."""
    parts = name.split(".")
    return {".".join(parts[:at]) for at in range(1, len(parts) + 1)}


def _summing_block(located: ModelMap, norm: Norm, change: Change) -> int:
    """The block whose sum a norm reads."""
    reach = located.analysis.reachability
    sums = reach.plain.get(norm.input, 0) & reach.sums
    if not sums:
        raise UsageError(f"after the move {change.name!r} does not read a residual sum, so the move is refused.")
    return located.block_of[located.adds[reach.latest(sums)]]


def check_gone(model: nn.Module, removed: Mapping[str, nn.Module], names: Iterable[str]) -> None:
    """Removed norms are neither part of the model nor share a parameter with it."""
    modules, parameters = set(model.modules()), set(model.parameters())
    for name in names:
        norm = removed.get(name)
        if norm is not None and (norm in modules or parameters & set(norm.parameters())):
            raise UsageError(f"{name!r} was removed but is still part of the model: give each layer its own norm.")


def check_statistics(name: str, norm: Norm, tensors: Mapping[int, Tensor]) -> None:
    """What a norm returns is its normalized input, up to one gain and shift per feature."""
    x, y = tensors.get(norm.input), tensors.get(norm.output)
    if norm.kind not in NORMALIZING or x is None or y is None or x.numel() != y.numel():
        return
    y = y.reshape(x.shape)
    fits = _is_affine_in if norm.affine else _is_equal
    candidates = [fits(z, y, axis) for z, axis in _normalized(x, norm)]
    if candidates and not any(candidates):
        raise UsageError(
            f"{name!r} does not return normalized rows ({norm.kind}), so the move cannot be verified: make the norm a "
            "module of its own that divides by the root of its mean square or variance."
        )


def _normalized(x: Tensor, norm: Norm) -> Iterator[tuple[Tensor, int]]:
    """The input normalized by definition, over each set of dimensions that can hold features, and their axis."""
    wide = x.double()
    for dims, axis in (((-1,), -1), ((1,), 1), ((-2, -1), -1), ((-3, -2, -1), -1)):
        if x.ndim <= max(dims[-1], -dims[0]) or math.prod(x.shape) // math.prod(x.shape[dim] for dim in dims) < 2:
            continue  # a single statistic for everything would fit any factor
        centred = wide - wide.mean(dims, keepdim=True) if norm.kind == "layer" else wide
        square = centred.square()
        statistic = square.sum(dims, keepdim=True) if norm.kind == "l2" else square.mean(dims, keepdim=True)
        yield centred / (statistic + (norm.eps or 0.0)).sqrt().clamp(min=1e-30), axis


def _is_equal(z: Tensor, y: Tensor, axis: int) -> bool:
    left = (z - y.double()).abs().max()
    return bool(left <= TOLERANCE.get(y.dtype, 1e-3) * z.abs().max().clamp(min=1e-30))


def _is_affine_in(z: Tensor, y: Tensor, axis: int) -> bool:
    """Whether ``y`` is ``gain * z + shift`` with one gain and shift per feature; by least squares."""
    tolerance = TOLERANCE.get(y.dtype, 1e-3)
    y = y.double().movedim(axis, -1).flatten(0, -2)
    z = z.movedim(axis, -1).flatten(0, -2)
    centred_z, centred_y = z - z.mean(0), y - y.mean(0)
    gain = (centred_z * centred_y).sum(0) / centred_z.square().sum(0).clamp(min=1e-30)
    left = (centred_y - gain * centred_z).abs().max()
    return bool(left <= tolerance * y.abs().max().clamp(min=1e-30))


def _operands(located: ModelMap, block: int) -> list[int]:
    found = []
    for residual in located.residuals(block):
        found += [residual.skip, residual.output, *located.analysis.branches.summands(residual)]
    return found


def check_sum(located: ModelMap, norm: Norm, block: int, tensors: Mapping[int, Tensor]) -> None:
    """The input of a norm on the sum is the skip plus every branch."""
    residuals, graph = located.residuals(block), located.graph
    nodes = [graph.nodes[residual.node] for residual in residuals]
    if any(node.name != "add" or node.op is None or node.op.kwargs.get("alpha", 1) != 1 for node in nodes):
        return  # gated or scaled, so that the operands are not the summands
    values = [
        residuals[0].skip,
        *(value for residual in residuals for value in located.analysis.branches.summands(residual)),
    ]
    summed = tensors.get(norm.input)
    if summed is None or any(value not in tensors for value in values):
        return  # part of a fused operator
    total = sum((tensors[value].double() for value in values), torch.zeros((), dtype=torch.float64))
    if total.numel() != summed.numel():
        return  # one of them is spread over the others
    left = (total.reshape(summed.shape) - summed.double()).abs().max()
    if left > TOLERANCE.get(summed.dtype, 1e-3) * summed.double().abs().max():
        raise _not_whole(located, block, "it does not equal the skip plus the branches")


def check_nothing_added_behind(located: ModelMap, streams: Sequence[tuple[Norm, int]]) -> None:
    """Behind a norm on the sum nothing more of the same stream is added, past it, before the next block.

    Args:
        located: The recorded pass.
        streams: Norms on sums, with their blocks.
    """
    graph, reach = located.graph, located.analysis.reachability
    inside = {node for norm in located.norms for node in norm.nodes}
    adds = {residual.node for residual in located.analysis.adds}
    upto = _streams_upto(located)
    for norm, block in streams:
        own, through = upto[block], reach.bit.get(norm.output, 0)
        queue, seen = [norm.output], set()
        while queue:
            value = queue.pop()
            for at in graph.consumers.get(value, ()):
                node = graph.nodes[at]
                if at in seen or at in inside or graph.is_barrier(node):
                    continue
                seen.add(at)
                for other in graph.data_inputs(node) if node.name in ADDS or node.name == "sub" else ():
                    past = reach.any.get(other, 0)
                    if other != value and past & own and not past & through:
                        where = graph.path(node) or "the model"
                        raise _not_whole(located, block, f"{where!r} adds another branch behind it")
                queue += () if at in adds else node.outputs


def _streams_upto(located: ModelMap) -> list[int]:
    """For each block the values of its stream up to it, as a bit set."""
    reach, found = located.analysis.reachability, []
    streams: dict[int, int] = {}
    for at, block in enumerate(located.blocks):
        for residual in located.residuals(at):
            bits = reach.bit[residual.output] | reach.bit.get(residual.fork, 0)
            streams[block.stream] = streams.get(block.stream, 0) | bits
        found.append(streams[block.stream])
    return found


def check_read_through(located: ModelMap, blocks: Iterable[int]) -> None:
    """A branch reads the stream through its input norm alone."""
    graph = located.graph
    every = {node for norm in located.norms for node in norm.nodes}
    inside: dict[int | None, set[int]] = {}
    for norm, site in zip(located.norms, located.audit.sites, strict=True):
        if site.slot == "input":
            inside.setdefault(site.block, set()).update(norm.nodes)
    for block in sorted(blocks):
        for residual in located.residuals(block):
            region = located.analysis.regions.of(residual)
            for node in _readers(located, residual, set(region), every):
                if node not in inside.get(block, ()):
                    where = graph.path(graph.nodes[node]) or "the model"
                    raise UsageError(
                        f"after the move {where!r} reads the stream past the input norm of block "
                        f"{label(located.blocks[block], block)}, so the move is refused: pass it what the norm returns."
                    )


def _readers(located: ModelMap, residual: ResidualAdd, region: Set[int], norms: Set[int]) -> Iterator[int]:
    """The nodes of a branch that read the stream, seen through moves."""
    queue, seen = [residual.fork], set()
    while queue:
        value = queue.pop()
        for at in located.graph.consumers.get(value, ()):
            if at not in region or at in seen:
                continue
            seen.add(at)
            node = located.graph.nodes[at]
            if node.name in MOVES and at not in norms:
                queue += node.outputs
            else:
                yield at


def _not_whole(located: ModelMap, block: int, reason: str) -> UsageError:
    return UsageError(
        f"a norm on the sum of block {label(located.blocks[block], block)} would not read the whole sum, because "
        f"{reason}: write the block as one sum, or choose a placement without a norm on the sum."
    )


def require_understood(located: ModelMap) -> None:
    """Refuse models that cannot be edited safely, with the module's name.

    Raises:
        UsageError: If a block has a user-defined backward pass, or the audit does not understand it.
    """
    for at, block in enumerate(located.blocks):
        if block.custom_backward is not None:
            raise UsageError(
                f"block {label(block, at)} runs in {block.custom_backward}, whose own backward pass does not know of "
                "moved norms: turn reversible or checkpointed layers off."
            )
        if block.unknown:
            unknown = block.unknown[0]
            raise UsageError(
                f"the norms of block {label(block, at)} are not moved, because the audit does not understand "
                f"{unknown.operator} in {unknown.module!r}: {unknown.reason.rstrip('.')}."
            )
