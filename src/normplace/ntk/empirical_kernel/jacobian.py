"""Per-sample gradients of the parameters without a layer rule, by torch.func or sample by sample."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from normplace.ntk.empirical_kernel.output_agreement import outputs_agree
from normplace.ntk.empirical_kernel.probe import forward
from normplace.ntk.model_state import differentiable, differentiating


class Jacobian:
    """Per-sample gradients of a model's outputs with respect to some of its parameters.

    Args:
        model: The network.
        parameters: The parameters to differentiate, by name.
        outputs: Number of the model's outputs.
        summed: Differentiate the sum of the outputs instead of each.
        by_sample: Differentiate sample by sample by autograd, because torch.func does not run all hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        outputs: int,
        *,
        summed: bool,
        by_sample: bool = False,
    ) -> None:
        self.model = model
        self.parameters = dict(parameters)
        self.outputs = outputs
        self.summed = summed
        self._vmap_works = not by_sample

    def __call__(self, x: Tensor) -> Tensor:
        """Gradients as samples × outputs × parameters."""
        if self._vmap_works and len(x) > 1:
            try:
                with torch.enable_grad():
                    rows = self._vmapped(x).detach()
                    self._vmap_works = self._agrees(rows, x)
                if self._vmap_works:
                    return rows
            except Exception:  # whatever the model's code raises
                # torch.func does not support some models (data-dependent shapes, operators without a batching rule).
                # The loop computes the same gradients, and raises again if the model itself fails.
                self._vmap_works = False
        return torch.cat([self._single(x[i : i + 1]) for i in range(len(x))])

    def _vmapped(self, x: Tensor) -> Tensor:
        def outputs_of(parameters: dict[str, Tensor], sample: Tensor) -> tuple[Tensor, Tensor]:
            everywhere = others | {location: parameters[name] for location, name in locations.items()}
            # ``tie_weights`` would replace a module that is registered twice twice, and restore it once.
            y = functional_call(self.model, everywhere, (sample.unsqueeze(0).clone(),), tie_weights=False).reshape(-1)
            return y.sum(0, keepdim=True) if self.summed else y, y

        locations, others = self._locations()
        values = {name: p.detach() for name, p in self.parameters.items()}
        with warnings.catch_warnings(), differentiable(self.model):
            # A missing batching rule only costs time, and the caller cannot change it.
            warnings.filterwarnings("ignore", message=".*performance drop.*")
            # ``chunk_size`` limits the copies that jacrev makes over the outputs.
            grads, y = vmap(jacrev(outputs_of, has_aux=True, chunk_size=16), in_dims=(None, 0))(values, x)
        if y.requires_grad:
            raise TypeError("the model keeps a parameter, or a tensor computed from one, outside its modules.")
        return torch.cat([g.flatten(2) if g.ndim > 2 else g.unsqueeze(2) for g in grads.values()], dim=2)

    def _agrees(self, rows: Tensor, x: Tensor) -> bool:
        """Whether a combination of all rows is the gradient that autograd computes for the batch.

        torch.func computes wrong gradients for some operators, such as those of a PReLU with one parameter if there are
        as many samples as outputs.
        """
        y = forward(self.model, x, self.outputs)
        if not y.requires_grad:
            return not bool(rows.any())
        y = y.sum(1, keepdim=True) if self.summed else y
        shares = torch.arange(y.numel(), dtype=y.dtype, device=y.device).cos()
        expected = self._gradient(shares @ y.flatten()).to(rows.dtype)
        rows = rows.flatten(0, 1)
        return bool(outputs_agree(shares.to(rows.dtype) @ rows, expected, torch.linalg.vector_norm(rows, 1, dim=0)))

    def _gradient(self, target: Tensor, *, retain_graph: bool = False) -> Tensor:
        """The gradient of a number with respect to the parameters."""
        with differentiating():
            grads = torch.autograd.grad(
                target, list(self.parameters.values()), retain_graph=retain_graph, allow_unused=True
            )
        return torch.cat([_dense(g, p) for g, p in zip(grads, self.parameters.values(), strict=True)])

    def _locations(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """The parameter's name at each of its locations in the model, and the values of all other parameters."""
        names = {id(p): name for name, p in self.parameters.items()}
        own, others = {}, {}
        for prefix, module in self.model.named_modules():
            for name, p in module._parameters.items():
                location = f"{prefix}.{name}" if prefix else name
                if id(p) in names:
                    own[location] = names[id(p)]
                elif p is not None and p.requires_grad:
                    others[location] = p.detach()
        return own, others

    def _single(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = forward(self.model, x, self.outputs)[0]
            targets = [y.sum()] if self.summed else list(y)
            rows = [self._gradient(target, retain_graph=i + 1 < len(targets)) for i, target in enumerate(targets)]
        return torch.stack(rows).unsqueeze(0)


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter).flatten()
    return (gradient.to_dense() if gradient.is_sparse else gradient).flatten()
