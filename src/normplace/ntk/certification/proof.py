"""Prove that a network's output is bounded over all inputs, operator by operator.

The recorded operators are visited once, in order. The rule of each operator derives a :class:`Value`, facts about its
result that hold for every input. The output is proven bounded if its value is. The same pass decides whether the
gradient with respect to the trainable parameters, and with it the diagonal of the tangent kernel, is bounded.
"""

from __future__ import annotations

import copy
import math
import operator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from normplace._shared.closure import closure
from normplace.ntk.certification import (  # noqa: F401 - importing them registers the rules
    elementwise_rules,
    indexing_rules,
    layer_rules,
    reduction_rules,
)
from normplace.ntk.certification.facts import Value, constant, in_dtype
from normplace.ntk.certification.record import NotRecordedError, Recording, record, shapes
from normplace.ntk.certification.rules import RULES, OperatorCall

# Operators whose rules handle -inf.
_HANDLE_MINUS_INF = {
    *("add", "where", "masked_fill", "_softmax", "_safe_softmax", "_scaled_dot_product_flash_attention_for_cpu"),
    *("expand", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "clone", "alias", "detach", "_to_copy"),
}
# Operators whose rules handle an infinite number among their arguments.
_HANDLE_INFINITE_NUMBERS = {
    *("where", "masked_fill", "clamp", "clamp_min", "clamp_max", "hardtanh", "linalg_vector_norm"),
}
# Modules that a message names at most.
_MOST_NAMED = 4


@dataclass(frozen=True)
class Proof:
    """The result of a proof attempt.

    Attributes:
        output: Whether the output is proven bounded over all inputs, at any parameters.
        kernel: Whether the kernel diagonal Θ(x, x) is proven bounded over all inputs, at any parameters.
        steps: The proof for the output: the operators that bound a tensor, in order.
        stopped: Why the proof for the output failed; empty if it succeeded.
    """

    output: bool
    kernel: bool
    steps: tuple[str, ...]
    stopped: str


def prove(model: nn.Module, x: Tensor) -> Proof:
    """Try to prove that the output of ``model`` is bounded over all inputs of the shape of ``x``.

    Args:
        model: The network, in the precision of ``x``.
        x: A batch of one sample.

    Returns:
        The proof, or the reason that it failed.
    """
    duplicate = copy.deepcopy(model)
    try:
        recording = record(duplicate, x)
    except NotRecordedError as error:
        return Proof(False, False, (), f"{error}.")
    trainable = {name for name, parameter in duplicate.named_parameters() if parameter.requires_grad}
    state = {**dict(duplicate.named_parameters()), **dict(duplicate.named_buffers())}
    with torch.no_grad():
        propagation = _Propagation(recording, state, trainable)
    output = propagation.values[propagation.output]
    if not output.bounded:
        return Proof(False, False, (), propagation.obstacle())
    return Proof(True, output.bounded_gradient, propagation.steps(), "")


class _Propagation:
    """The values of all recorded tensors, computed in order.

    Args:
        recording: The recorded operators.
        state: Parameters and buffers by name.
        trainable: Names of the trainable parameters.
    """

    def __init__(self, recording: Recording, state: dict[str, Tensor], trainable: set[str]) -> None:
        self.recording = recording
        self.values: dict[fx.Node, Any] = {}
        self.without_rule: set[fx.Node] = set()
        self._tensors: dict[fx.Node, Any] = {}  # of the nodes that do not depend on the input
        self._names: dict[str, str] = {}  # of the first node with a given operator and arguments
        inputs = iter((*recording.names, None))
        for node in recording.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    name = next(inputs)
                    if name is None:
                        self.values[node] = Value(shapes(node)[0], node.name)
                    else:
                        self._set_constant(node, node.name, state[name], depends_on_parameters=name in trainable)
                case "get_attr":
                    tensor = getattr(recording.graph, str(node.target))
                    self._set_constant(node, node.name, tensor, depends_on_parameters=False)
                case "call_function":
                    self._propagate(node)
                case _:
                    (self.output,) = node.all_input_nodes

    def _set_constant(self, node: fx.Node, name: str, tensors: Any, *, depends_on_parameters: bool) -> None:
        self._tensors[node] = tensors
        if isinstance(tensors, Tensor):
            self.values[node] = constant(name, tensors, depends_on_parameters=depends_on_parameters)
        else:
            self.values[node] = tuple(
                constant((name, index), tensor, depends_on_parameters=depends_on_parameters)
                for index, tensor in enumerate(tensors)
            )

    def _propagate(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = cast("tuple[fx.Node, int]", node.args)
            self.values[node] = self.values[source][index]
            if source in self._tensors:
                self._tensors[node] = self._tensors[source][index]
            return
        call, target = self._call(node), cast(Any, node.target)
        if any(value.depends_on_input for value in call.tensors):
            self.values[node] = self._apply_rule(node, call)
            return
        if torch.Tag.nondeterministic_seeded in target.tags:
            # Of these, only attention without dropout has a rule. What may be random is treated like the input.
            derived = self._apply_rule(node, call)
            values = (derived,) if isinstance(derived, Value) else derived
            values = tuple(replace(value, depends_on_input=True) for value in values)
            self.values[node] = values[0] if isinstance(derived, Value) else values
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._tensors.__getitem__)
        trained = any(value.depends_on_parameters for value in call.tensors)
        self._set_constant(node, call.name, target(*args, **kwargs), depends_on_parameters=trained)
        value = self.values[node]
        if trained and isinstance(value, Value) and value.finite:
            # Training may change the entries, but not what the rule guarantees.
            derived = self._apply_rule(node, call)
            if isinstance(derived, Value) and derived.finite:
                self.values[node] = replace(value, lower=derived.lower, upper=derived.upper, positive=derived.positive)

    def _call(self, node: fx.Node) -> OperatorCall:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        schema = cast(Any, node.target)._schema
        arguments = {
            parameter.name: args[index] if index < len(args) else kwargs.get(parameter.name, parameter.default_value)
            for index, parameter in enumerate(schema.arguments)
        }
        namespace, label = schema.name.split("::")
        label = label.rstrip("_") if schema.is_mutable else label
        label = label if namespace == "aten" else schema.name
        result = node.meta["val"]
        dtype = (result if isinstance(result, Tensor) else result[0]).dtype
        # The same operator on the same tensors gives the same tensor, so both results get one identity.
        signature = repr((schema.name, schema.overload_name, _identity(tuple(arguments.values()))))
        return OperatorCall(label, self._names.setdefault(signature, node.name), arguments, shapes(node), dtype)

    def _apply_rule(self, node: fx.Node, call: OperatorCall) -> Value | tuple[Value, ...]:
        unknown = (
            call.unknown()
            if isinstance(node.meta["val"], Tensor)
            else tuple(call.result(output=index, finite=False) for index in range(len(call.shapes)))
        )
        if not all(value.finite for value in call.tensors):
            return unknown
        if call.operator not in _HANDLE_MINUS_INF and any(value.minus_inf is not None for value in call.tensors):
            return unknown
        if call.operator not in _HANDLE_INFINITE_NUMBERS and any(map(_is_infinite, call.args)):
            return unknown
        rule = RULES.get(call.operator)
        is_real = call.dtype is not None and not call.dtype.is_complex
        derived = rule(call) if rule is not None and is_real else None
        if derived is None:
            self.without_rule.add(node)
            return unknown
        if isinstance(derived, Value):
            return in_dtype(derived, node.meta["val"].dtype)
        return tuple(map(in_dtype, derived, (tensor.dtype for tensor in node.meta["val"])))

    def _first_value(self, node: fx.Node) -> Value | None:
        value = self.values.get(node)
        return value if isinstance(value, Value) else value[0] if value else None

    def _parents(self, node: fx.Node) -> list[fx.Node]:
        """The argument nodes that depend on the input."""
        values = ((parent, self._first_value(parent)) for parent in node.all_input_nodes)
        return [parent for parent, value in values if value is not None and value.depends_on_input]

    def steps(self) -> tuple[str, ...]:
        """The proof in words: the operators that turn unbounded tensors into bounded ones."""
        stack, visited, bounding = [self.output], set(), []
        while stack:
            node = stack.pop()
            if node in visited:
                continue
            visited.add(node)
            parents = self._parents(node)
            if all(_is_bounded(self.values[parent]) for parent in parents):
                stack.extend(parents)
            elif node.target is operator.getitem:
                bounding.append(node.args[0])
            elif not isinstance(node.meta["val"], Tensor) or node.meta["val"].dtype.is_floating_point:
                bounding.append(node)
        order = {node: index for index, node in enumerate(self.recording.graph.graph.nodes)}
        lines = [
            f"{_label(node)} in {self.recording.module_of(node)} {_why_bounded(_label(node))}"
            for node in sorted(set(bounding), key=order.__getitem__)
        ]
        end = "every operator from there to the output maps bounded tensors to bounded tensors"
        return (*dict.fromkeys(lines), end)

    def obstacle(self) -> str:
        """Why the proof failed: an operator without a rule, a result that may not be finite, or an unbounded path."""

        def unbounded_parents(node: fx.Node) -> list[fx.Node]:
            return [parent for parent in self._parents(node) if not _is_bounded(self.values[parent])]

        unbounded = set(closure([self.output], unbounded_parents))
        path = [node for node in self.recording.graph.graph.nodes if node in unbounded and node.op == "call_function"]
        for node in path:
            if node in self.without_rule:
                return f"there is no rule for {_label(node)} in {self.recording.module_of(node)}."
        for node in path:
            value = self._first_value(node)
            if value is not None and not value.finite and node.target is not operator.getitem:
                return (
                    f"the result of {_label(node)} in {self.recording.module_of(node)} is not proven finite for every "
                    "input (a divisor, root or logarithm may reach zero)."
                )
        modules = list(dict.fromkeys(self.recording.module_of(node) for node in path))
        names = ", ".join(modules[:_MOST_NAMED]) + (", …" if len(modules) > _MOST_NAMED else "")
        return f"no operator bounds the input on its way to the output through {names or 'the model'}."


def _identity(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_identity(item) for item in argument)
    return ("tensor", argument.key) if isinstance(argument, Value) else argument


def _is_infinite(argument: Any) -> bool:
    return isinstance(argument, float) and not math.isfinite(argument)


def _is_bounded(value: Any) -> bool:
    return value.bounded if isinstance(value, Value) else bool(value) and value[0].bounded


def _why_bounded(label: str) -> str:
    """Why the operator's result is bounded although its argument is not."""
    if "norm" in label:
        return "normalizes its input, so that no entry exceeds the root of the number of entries"
    if label in {"mul", "div", "mul_", "div_"}:
        return "divides a tensor by a quantity that grows at least as fast"
    if "softmax" in label:
        return "returns weights between 0 and 1"
    return "has values in a bounded range for every input"


def _label(node: fx.Node) -> str:
    target = node.target
    return str(getattr(target, "overloadpacket", target)).removeprefix("aten.")
