"""Node selection on graphs: dismantling, influence maximization, independent sets, and their classical methods.

The loops are compiled with numba: ``pip install 'normplace[graphs]'``.
"""

from normplace.lab.tasks.selection.betweenness import betweenness, betweenness_order
from normplace.lab.tasks.selection.corehd import corehd_order
from normplace.lab.tasks.selection.dismantling import Dismantling, adaptive_order, dismantle, reinsert
from normplace.lab.tasks.selection.graph import Graph, load_graph, relabel
from normplace.lab.tasks.selection.graph_files import NamedGraph, read_graph
from normplace.lab.tasks.selection.heuristics import (
    collective_influence,
    collective_influence_order,
    core_numbers,
    core_order,
    degree_order,
    pagerank,
    random_order,
    ranking,
)
from normplace.lab.tasks.selection.independent_set import (
    check_independent,
    exact_set,
    greedy_set,
    improve,
    is_independent,
    min_degree_set,
)
from normplace.lab.tasks.selection.influence import (
    IndependentCascade,
    LinearThreshold,
    Spread,
    spread,
    spread_curve,
    spreads,
)
from normplace.lab.tasks.selection.kamis import kamis_set
from normplace.lab.tasks.selection.methods import classical_order
from normplace.lab.tasks.selection.random_graphs import (
    barabasi_albert,
    block_graph,
    erdos_renyi,
    mixed_graphs,
    model_rb,
    partly_dismantled,
    powerlaw_cluster,
    powerlaw_configuration,
    shuffled,
    uniform_graph,
)
from normplace.lab.tasks.selection.reverse import SeedChoice, ris_greedy
from normplace.lab.tasks.selection_names import METHODS, methods_of

__all__ = [
    # Graphs
    "Graph",
    "load_graph",
    "read_graph",
    "NamedGraph",
    "relabel",
    # Random graphs
    "barabasi_albert",
    "powerlaw_cluster",
    "powerlaw_configuration",
    "erdos_renyi",
    "uniform_graph",
    "block_graph",
    "model_rb",
    "shuffled",
    "mixed_graphs",
    "partly_dismantled",
    # Dismantling
    "dismantle",
    "Dismantling",
    "adaptive_order",
    "reinsert",
    # Influence
    "spread",
    "spreads",
    "spread_curve",
    "Spread",
    "IndependentCascade",
    "LinearThreshold",
    "ris_greedy",
    "SeedChoice",
    # Independent sets
    "greedy_set",
    "min_degree_set",
    "improve",
    "exact_set",
    "kamis_set",
    "check_independent",
    "is_independent",
    # Classical methods by name
    "METHODS",
    "methods_of",
    "classical_order",
    # Classical orders and scores
    "ranking",
    "random_order",
    "degree_order",
    "core_order",
    "core_numbers",
    "corehd_order",
    "collective_influence",
    "collective_influence_order",
    "pagerank",
    "betweenness",
    "betweenness_order",
]
