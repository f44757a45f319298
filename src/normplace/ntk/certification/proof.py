"""Prove that a network's output is bounded over all inputs, operator by operator.

The recorded operators are visited once, in order. The rule of each operator derives a :class:`Value`, facts about its
result that hold for every input. The output is proven bounded if its value is. The same pass decides whether the
gradient with respect to the trainable parameters, and with it the diagonal of the tangent kernel, is bounded.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from normplace.ntk.certification import elementwise_rules, layer_rules  # noqa: F401 - importing them registers the rules
from normplace.ntk.certification.facts import Value, constant
from normplace.ntk.certification.record import NotRecordedError, Recording, record, shapes
from normplace.ntk.certification.rules import RULES, Call

# Operators whose rules know what -inf does.
_MASKED = """add where masked_fill _softmax _safe_softmax expand view _unsafe_view reshape unsqueeze squeeze clone alias
detach _to_copy _scaled_dot_product_flash_attention_for_cpu"""
_NAMED = 4


@dataclass(frozen=True)
class Proof:
    """What could be proven.

    Attributes:
        output: Whether the output is proven bounded over all inputs, at any parameters.
        kernel: Whether the kernel diagonal Θ(x, x) is proven bounded over all inputs, at any parameters.
        steps: The argument for the output, from the operators that bound a tensor to the output.
        stopped: What ended the proof of the output; empty where it succeeded.
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
        The proof, or where it stopped.
    """
    duplicate = copy.deepcopy(model)
    try:
        recording = record(duplicate, x)
    except NotRecordedError as error:
        return Proof(False, False, (), f"{error}.")
    trainable = {name for name, parameter in duplicate.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        walk = _Walk(recording, {**dict(duplicate.named_parameters()), **dict(duplicate.named_buffers())}, trainable)
    result = walk.output
    if not result.bounded:
        return Proof(False, False, (), walk.obstacle())
    return Proof(True, result.slope, walk.argument(), "")


class _Walk:
    """The values of all recorded tensors."""

    def __init__(self, recording: Recording, state: dict[str, Tensor], trainable: set[str]) -> None:
        self.recording = recording
        self.values: dict[fx.Node, Any] = {}
        self.numbers: dict[fx.Node, Any] = {}
        self.without_rule: set[fx.Node] = set()
        self.names: dict[str, str] = {}
        inputs = iter((*recording.names, None))
        for node in recording.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    name = next(inputs)
                    if name is None:
                        self.values[node] = Value(shapes(node)[0], node.name)
                    else:
                        self._fixed(node, state[name], trained=name in trainable)
                case "get_attr":
                    self._fixed(node, getattr(recording.graph, str(node.target)), trained=False)
                case "call_function":
                    self._step(node)
                case _:
                    (self.result,) = node.all_input_nodes

    @property
    def output(self) -> Value:
        """The value of the network's output."""
        return self.values[self.result]

    def _fixed(self, node: fx.Node, number: Any, *, trained: bool, name: str | None = None) -> None:
        self.numbers[node] = number
        name = node.name if name is None else name
        if isinstance(number, Tensor):
            self.values[node] = constant(tuple(number.shape), name, number, trained=trained)
        else:
            parts = enumerate(number)
            self.values[node] = tuple(
                constant(tuple(part.shape), (name, index), part, trained=trained) for index, part in parts
            )

    def _step(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = cast("tuple[fx.Node, int]", node.args)
            self.values[node] = self.values[source][index]
            if source in self.numbers:
                self.numbers[node] = self.numbers[source][index]
            return
        call, target = self._call(node), cast(Any, node.target)
        if any(value.varies for value in call.tensors):
            self.values[node] = self._apply(node, call)
            return
        if torch.Tag.nondeterministic_seeded in target.tags:
            self.without_rule.add(node)
            self.values[node] = replace(call.unknown(), varies=True)
            return
        arguments = fx.map_arg((node.args, node.kwargs), lambda one: self.numbers[one])
        trained = any(value.trained for value in call.tensors)
        self._fixed(node, target(*arguments[0], **arguments[1]), trained=trained, name=call.name)
        found = self.values[node]
        if trained and isinstance(found, Value) and found.finite:
            # The numbers may change in training, but what the operator guarantees does not.
            ruled = self._apply(node, call)
            if isinstance(ruled, Value) and ruled.finite:
                self.values[node] = replace(found, lower=ruled.lower, upper=ruled.upper, positive=ruled.positive)

    def _call(self, node: fx.Node) -> Call:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: self.values[one])
        schema = cast(Any, node.target)._schema
        arguments = {
            one.name: args[index] if index < len(args) else kwargs.get(one.name, one.default_value)
            for index, one in enumerate(schema.arguments)
        }
        space, label = schema.name.split("::")
        label = label.rstrip("_") if schema.is_mutable else label
        label = label if space == "aten" else schema.name
        value = node.meta["val"]
        dtype = (value if isinstance(value, Tensor) else value[0]).dtype
        # The same operator on the same tensors gives the same tensor, which then has one identity.
        signature = repr((schema.name, schema.overload_name, _identity(tuple(arguments.values()))))
        return Call(label, self.names.setdefault(signature, node.name), arguments, shapes(node), dtype)

    def _apply(self, node: fx.Node, call: Call) -> Value | tuple[Value, ...]:
        whole = call.make(finite=False)
        nothing = (
            whole
            if isinstance(node.meta["val"], Tensor)
            else tuple(call.make(output=index, finite=False) for index in range(len(call.shapes)))
        )
        if not all(value.finite for value in call.tensors):
            return nothing
        if call.operator not in _MASKED.split() and any(value.holes is not None for value in call.tensors):
            return nothing
        rule = RULES.get(call.operator)
        real = call.dtype is not None and not call.dtype.is_complex
        found = rule(call) if rule is not None and real else None
        if found is None:
            self.without_rule.add(node)
            return nothing
        return found

    def _of(self, node: fx.Node) -> Value | None:
        value = self.values.get(node)
        return value if isinstance(value, Value) else value[0] if value else None

    def _parents(self, node: fx.Node) -> list[fx.Node]:
        """The steps that a step uses and that depend on the input; a part of a tuple counts as the whole."""
        parents = []
        for parent in node.all_input_nodes:
            value = self._of(parent)
            if value is not None and value.varies:
                parents.append(parent)
        return parents

    def argument(self) -> tuple[str, ...]:
        """The operators that turn unbounded tensors into bounded ones, on the way to the output."""
        stack, seen, bounding = [self.result], set(), []
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            parents = self._parents(node)
            if all(_bounded(self.values[parent]) for parent in parents):
                stack.extend(parents)
            elif node.target is operator.getitem:
                bounding.append(node.args[0])
            elif not isinstance(node.meta["val"], Tensor) or node.meta["val"].dtype.is_floating_point:
                bounding.append(node)
        order = {node: index for index, node in enumerate(self.recording.graph.graph.nodes)}
        lines = []
        for node in sorted(set(bounding), key=order.__getitem__):
            line = f"{_label(node)} in {self.recording.module_of(node)} {_why(_label(node))}"
            if line not in lines:
                lines.append(line)
        return (*lines, "every operator from there to the output maps bounded tensors to bounded tensors")

    def obstacle(self) -> str:
        """The first step that the proof could not get over, or the way on which nothing bounds the input."""
        stack, seen = [self.result], set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            stack.extend(parent for parent in self._parents(node) if not _bounded(self.values[parent]))
        way = [node for node in self.recording.graph.graph.nodes if node in seen and node.op == "call_function"]
        for node in way:
            if node in self.without_rule:
                return f"there is no rule for {_label(node)} in {self.recording.module_of(node)}."
        for node in way:
            value = self._of(node)
            if value is not None and not value.finite and node.target is not operator.getitem:
                return (
                    f"the result of {_label(node)} in {self.recording.module_of(node)} is not proven finite for every "
                    "input (a divisor, root or logarithm may reach zero)."
                )
        modules = list(dict.fromkeys(self.recording.module_of(node) for node in way))
        named = ", ".join(modules[:_NAMED]) + (", …" if len(modules) > _NAMED else "")
        return f"no operator bounds the input on its way to the output through {named or 'the model'}."


def _identity(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_identity(one) for one in argument)
    return ("tensor", argument.key) if isinstance(argument, Value) else argument


def _bounded(value: Any) -> bool:
    return value.bounded if isinstance(value, Value) else bool(value) and value[0].bounded


def _why(label: str) -> str:
    """Why an operator has a bounded result for an unbounded argument."""
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
