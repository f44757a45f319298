"""Networks made of :class:`normplace.Residual` blocks, and ``BoundedRegressor``, which needs scikit-learn."""

from typing import TYPE_CHECKING, Any

from normplace.errors import UsageError
from normplace.models.deep_gcns import combine_categories, load_deep_gcns
from normplace.models.gen import GENConv
from normplace.models.graph import GraphStack
from normplace.models.graph_parts import Dropout
from normplace.models.mlp import MLP, Dense
from normplace.models.sequence import CausalRN, SequenceModel
from normplace.models.topology import topology
from normplace.models.transformer import Transformer, TransformerConfig

if TYPE_CHECKING:
    from normplace.models.regression.estimator import BoundedRegressor as BoundedRegressor

# Without BoundedRegressor, so that "from normplace.models import *" works without scikit-learn.
__all__ = [
    "MLP",
    "CausalRN",
    "Dense",
    "Dropout",
    "GENConv",
    "GraphStack",
    "SequenceModel",
    "Transformer",
    "TransformerConfig",
    "combine_categories",
    "load_deep_gcns",
    "topology",
]


def __getattr__(name: str) -> Any:
    """Import ``BoundedRegressor`` on first use, since it needs scikit-learn (PEP 562).

    Raises:
        AttributeError: If there is no such name.
        UsageError: If scikit-learn is not installed.
    """
    if name != "BoundedRegressor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from normplace.models.regression.estimator import BoundedRegressor
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise UsageError("BoundedRegressor needs scikit-learn: pip install 'normplace[sklearn]'.") from error
    globals()[name] = BoundedRegressor
    return BoundedRegressor


def __dir__() -> list[str]:
    """List the names, loaded or not."""
    return sorted({*globals(), "BoundedRegressor"})
