"""Drop-ins for PyG (``torch_geometric``): same names, arguments, state dicts and results, with this library's kernels.

Replace ``from torch_geometric.nn import GENConv`` by ``from normplace.pyg import GENConv``. The classes derive from
PyG's base classes, so that explainers and convolutions with an ``aggr`` accept them.
"""

from normplace.errors import UsageError

try:
    import torch_geometric  # noqa: F401 (the drop-ins derive from its classes)
except ModuleNotFoundError as error:
    raise UsageError("normplace.pyg needs PyG: pip install 'normplace[graphs]'.") from error

from normplace.pyg.aggregation import PowerMeanAggregation, SoftmaxAggregation
from normplace.pyg.conv import GENConv
from normplace.pyg.deepgcn import DeepGCNLayer
from normplace.pyg.norms import MessageNorm, PairNorm

__all__ = ["DeepGCNLayer", "GENConv", "MessageNorm", "PairNorm", "PowerMeanAggregation", "SoftmaxAggregation"]
