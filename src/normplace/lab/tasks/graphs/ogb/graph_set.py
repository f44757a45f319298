"""The tasks with a label for each graph: ogbg-molhiv, ogbg-molpcba and ogbg-ppa."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES, GRAPHS, check_categories, load_molhiv
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask, find_folder
from normplace.lab.tasks.graphs.ogb.files import read_split
from normplace.lab.tasks.graphs.ogb.raw_graphs import read_raw


def load_graph_set(task: OgbTask, folder: Path) -> GraphSet:
    """Read graphs with labels from OGB's files; ogbg-molhiv also from those of :func:`load_molhiv`.

    Raises:
        UsageError: If a file is missing or damaged, or contradicts the others.
    """
    if task.name == "ogbg-molhiv" and (folder / GRAPHS).is_file():
        return load_molhiv(str(folder / GRAPHS))
    home = find_folder(task, folder)
    raw = read_raw(task, home)
    if raw.edge_feat is None or (raw.node_feat is None and task.categorical):
        raise UsageError(f"{home} has no features of {'atoms and bonds' if task.categorical else 'edges'}.")
    if task.categorical:
        assert raw.node_feat is not None
        check_categories("node-feat", raw.node_feat, ATOM_SIZES, str(home))
        check_categories("edge-feat", raw.edge_feat, BOND_SIZES, str(home))
    kind = np.uint8 if task.categorical else np.float32
    features = np.empty((int(raw.nodes.sum()), 0)) if raw.node_feat is None else raw.node_feat
    x, attr = (torch.from_numpy(table.astype(kind, copy=False)) for table in (features, raw.edge_feat))
    split = read_split(home / "split" / task.split, len(raw.nodes))
    pairs, nodes, edges, y = map(torch.from_numpy, (raw.edge_index, raw.nodes, raw.edges, raw.labels))
    return GraphSet(x, pairs, attr, nodes, edges, y, *split, both_directions=raw.both_directions)
