"""``GENConv`` as a PyG ``MessagePassing``, so that explainers find it."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import MessagePassing

from normplace import models
from normplace.errors import UsageError
from normplace.models.aggregation import Clamp

HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")


class GENConv(models.GENConv, MessagePassing):
    """:class:`normplace.models.GENConv` as a PyG ``MessagePassing``, with PyG's clamped power mean.

    Edge masks of ``torch_geometric.explain`` apply to its messages, which are stored while there is a mask. Hooks on
    the steps of ``MessagePassing``, such as ``register_message_forward_hook``, are refused, because the steps are one
    kernel.
    """

    clamp = Clamp(1e-4, 100.0)

    def message_weights(self) -> Tensor | None:
        """The edge mask of an explainer; None without one."""
        for step in HOOKS:
            if getattr(self, f"_{step}_forward_pre_hooks") or getattr(self, f"_{step}_forward_hooks"):
                raise UsageError(
                    f"GENConv has a hook on its {step} step, which is part of one kernel here: remove the hook, or use "
                    "PyG's GENConv."
                )
        if not self.explain:
            return None
        mask = self._edge_mask
        if mask is None:
            raise UsageError("explain is set, but there is no edge mask: use torch_geometric.explain.Explainer.")
        return mask.sigmoid() if self._apply_sigmoid else mask
