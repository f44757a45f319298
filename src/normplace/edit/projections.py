"""Find the modules that compute the queries and keys of attention."""

from __future__ import annotations

from dataclasses import dataclass

from normplace.analysis.recording.ids import BlockIndex, ValueId
from normplace.edit.model_map import ModelMap, TensorRef, is_outside_tree
from normplace.errors import UsageError


@dataclass(frozen=True)
class ProjectionRef:
    """The output of the module that computes queries or keys.

    Attributes:
        letter: ``q`` or ``k``.
        output: The module's output.
        value: The same as a value of the pass.
        head_size: The number of features per head.
    """

    letter: str
    output: TensorRef
    value: ValueId
    head_size: int


def find_projections(model_map: ModelMap, block: BlockIndex, branch: int) -> list[ProjectionRef]:
    """The modules that compute the queries and keys of an attention branch.

    Args:
        model_map: Where the model can be edited.
        block: The block.
        branch: Which of its branches.

    Raises:
        UsageError: If queries and keys do not come from two modules.
    """
    analysis = model_map.analysis
    add, value = analysis.branches_of(block)[branch]
    region = analysis.regions.of(add, value)
    outputs: dict[str, tuple[TensorRef, ValueId]] = {}
    head_size = 0
    for (node_id, operand), letter in analysis.attention.letters.items():
        if node_id in region and letter in "qk" and letter not in outputs:
            path, output = _projection(model_map, operand, block)
            outputs[letter] = (TensorRef(path, (None,), model_map.width(output)), output)
            if letter == "q":  # the keys may be transposed
                head_size = model_map.width(operand)
    if len(outputs) < 2 or outputs["q"][0] == outputs["k"][0]:
        raise _no_projection(model_map, block)
    return [ProjectionRef(letter, *outputs[letter], head_size) for letter in "qk"]


def _projection(model_map: ModelMap, operand: ValueId, block: BlockIndex) -> tuple[str, ValueId]:
    """The nearest module with weights that an operand of attention is computed by, and its output."""
    graph, calls = model_map.analysis.graph, model_map.analysis.tape.calls
    queue, seen = [operand], set()
    while queue:
        value = queue.pop(0)
        node = graph.maker(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        for index, _ in model_map.returned_by.get(value, ()):
            call = calls[index]
            if call.results == {None: value} and call.parent >= 0 and _is_weighted_leaf(model_map, call.path):
                return call.path, value
        if not graph.is_barrier(node):
            queue += graph.data_inputs(node)
    raise _no_projection(model_map, block)


def _is_weighted_leaf(model_map: ModelMap, path: str) -> bool:
    if not path or is_outside_tree(path):
        return False
    module = model_map.model.get_submodule(path)
    return not any(True for _ in module.children()) and hasattr(module, "weight")


def _no_projection(model_map: ModelMap, block: BlockIndex) -> UsageError:
    return UsageError(
        f"cannot put norms on queries and keys of block {model_map.label(block)}, because they do not come from a "
        "module each: split the projection first."
    )
