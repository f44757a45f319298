"""Inside a branch: where attention reads its queries, keys and values, and what a norm there is therefore called."""

from __future__ import annotations

from collections.abc import Iterable

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operand_roles import operand_role
from normplace.analysis.dataflow.operators import ATTENTION, CONVOLUTIONS, PRODUCTS, RECURRENCES, ROW_MIXERS, SOFTMAXES
from normplace.analysis.norms.find import Norm
from normplace.analysis.residuals.adds import Reachability, ResidualAdd

ORDER = "qkv"


class AttentionCores:
    """The attention cores of a graph, fused or written out."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.letters: dict[tuple[int, int], str] = {}  # (node, operand) -> q, k or v
        self.ends: set[int] = set()  # nodes that return what attention gathered
        self._regions: dict[int, set[int]] = {}
        for at, node in enumerate(graph.nodes):
            if node.name in ATTENTION:
                self.letters |= {(at, value): letter for value, letter in zip(node.inputs, ORDER, strict=False)}
                self.ends.add(at)
            elif node.name in SOFTMAXES and graph.is_features(node.inputs[0]):
                self._written_out(at)

    def _written_out(self, at: int) -> None:
        scores = self._product(self.graph.nodes[at].inputs[0], forward=False)
        gathered = self._product(self.graph.nodes[at].outputs[0], forward=True)
        if scores is None or gathered is None:
            return
        query, key = self.graph.factors(self.graph.nodes[scores])[:2]
        weights = self._derived(self.graph.nodes[at].outputs[0])
        self.letters |= {(scores, query): "q", (scores, key): "k"}
        self.letters |= {(gathered, value): "v" for value in self.graph.nodes[gathered].inputs if value not in weights}
        self.ends.add(gathered)

    def _product(self, value: int, forward: bool) -> int | None:
        """The nearest product of two features up or down from a value, with no other product between."""
        queue, seen = [value], set()
        while queue:
            value = queue.pop(0)
            ahead = self.graph.consumers.get(value, []) if forward else [self.graph.producer.get(value)]
            for at in ahead:
                if at is None or at in seen:
                    continue
                seen.add(at)
                node = self.graph.nodes[at]
                if node.name in PRODUCTS:
                    if len(self.graph.factors(node)) >= 2:
                        return at
                elif not self.graph.is_barrier(node):
                    queue += node.outputs if forward else self.graph.data_inputs(node)
        return None

    def _derived(self, value: int) -> set[int]:
        """A value and what follows from it up to the next barrier."""
        seen, queue = set(), [value]
        while queue:
            value = queue.pop()
            if value not in seen:
                seen.add(value)
                for node in self.graph.readers(value):
                    queue += () if self.graph.is_barrier(node) else node.outputs
        return seen

    def region(self, residual: ResidualAdd, reach: Reachability) -> set[int]:
        """The nodes of a whole branch."""
        if residual.node not in self._regions:
            self._regions[residual.node] = self.between(residual, reach)
        return self._regions[residual.node]

    def between(self, residual: ResidualAdd, reach: Reachability) -> set[int]:
        """The nodes between the fork and the branch operand, and what joins them from elsewhere."""
        seen: set[int] = set()
        queue = [residual.branch]
        while queue:
            at = self.graph.producer.get(queue.pop())
            if at is None or at in seen:
                continue
            node = self.graph.nodes[at]
            follows = any(reach.comes_from(value, residual.fork) for value in node.inputs)
            if follows and residual.fork not in node.outputs:
                seen.add(at)
                queue += [value for value in node.inputs if value != residual.fork]
        return seen

    def kind_of(self, region: set[int]) -> str:
        """What a branch is: attention, recurrence, convolution, experts, mixer or mlp."""
        names = {self.graph.nodes[at].name for at in region}
        if region & self.ends:
            return "attention"
        if names & RECURRENCES:
            return "recurrence"
        if names & CONVOLUTIONS:
            return "convolution"
        if "topk" in names:
            return "experts"
        return "mixer" if self._mixes_rows(region) else "mlp"

    def _mixes_rows(self, region: Iterable[int]) -> bool:
        nodes = [self.graph.nodes[at] for at in region]
        if any(node.name in ROW_MIXERS for node in nodes):
            return True
        return any(node.name in PRODUCTS and len(self.graph.factors(node)) >= 2 for node in nodes)

    def is_unclear(self, norm: Norm) -> bool:
        """Whether a product of features with features reads a norm, but in no role that attention has."""
        read = [self.graph.nodes[at] for at, _ in self._met(norm.output)]
        paired = any(node.name in PRODUCTS and len(self.graph.factors(node)) > 1 for node in read)
        return paired and not self._letters(self._met(norm.output)) and not operand_role(self.graph, norm.output)

    def operand(self, norm: Norm, region: set[int]) -> str:
        """What attention within a region reads the result of a norm as: q, k or v; empty where it does not."""
        met = self._met(norm.output)
        if not any(at in region for at, _ in met):
            return ""
        return self._letters(met) or operand_role(self.graph, norm.output)

    def role(self, norm: Norm, region: set[int], residual: ResidualAdd, reach: Reachability) -> str:
        """The name of an inner norm."""
        first = self._met(norm.output)
        letters = self._letters(first)
        if letters:
            return letters
        operand = operand_role(self.graph, norm.output)
        if operand:
            return operand
        behind = self._met(norm.input, forward=False)
        if {at for at, _ in behind} & self.ends:
            return "pre-output"
        products = [self.graph.nodes[at] for at, _ in first if self.graph.nodes[at].name in PRODUCTS]
        further = self._letters(pair for node in products for pair in self._met(node.outputs[0]))
        if further:
            return f"{further}-latent"
        last = any(self._ends_branch(node, residual) for node in products)
        return "pre-output" if last and self._mixes_rows(self._around(norm, region, reach)) else "mid"

    def _around(self, norm: Norm, region: set[int], reach: Reachability) -> set[int]:
        """The part of a branch on the ways into a norm and out of it."""
        found = {
            at for at in region if any(reach.comes_from(value, norm.output) for value in self.graph.nodes[at].outputs)
        }
        queue = [norm.input]
        while queue:
            value = queue.pop()
            at = self.graph.producer.get(value)
            if reach.bit.get(value, 0) & reach.sums:
                continue  # the branch reads another stream
            if at in region and at not in found:
                found.add(at)
                queue += self.graph.nodes[at].inputs
        return found

    def _letters(self, met: Iterable[tuple[int, int]]) -> str:
        found = {self.letters[pair] for pair in met if pair in self.letters}
        return "".join(letter for letter in ORDER if letter in found)

    def _met(self, value: int, forward: bool = True) -> list[tuple[int, int]]:
        """The first barriers on every way from a value, each with the operand that met it."""
        met, seen, queue = [], set(), [value]
        while queue:
            value = queue.pop()
            if value in seen:
                continue
            seen.add(value)
            if forward:
                for at in self.graph.consumers.get(value, ()):
                    node = self.graph.nodes[at]
                    if self.graph.is_barrier(node):
                        met.append((at, value))
                    else:
                        queue += node.outputs
                continue
            at = self.graph.producer.get(value)
            if at is not None:
                node = self.graph.nodes[at]
                if self.graph.is_barrier(node):
                    met.append((at, value))
                else:
                    queue += self.graph.data_inputs(node)
        return met

    def _ends_branch(self, node: Node, residual: ResidualAdd) -> bool:
        return any(self._reaches(value, residual.branch) for value in node.outputs)

    def _reaches(self, value: int, target: int) -> bool:
        return target in self._derived(value)
