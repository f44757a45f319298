"""Train a recommender with Bayesian personalised ranking, without waiting for the device between steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.lab.tasks.recommend.bpr import TripleSampler, batch_penalty, bpr_loss
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.train.replay import GraphedStep, set_learning_rate

SCHEDULES = ("constant", "linear")


def fit_bpr(
    model: nn.Module,
    represent: Callable[[], Tensor],
    interactions: Interactions,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    l2: float = 1e-4,
    schedule: str = "constant",
    cuda_graph: bool = False,
    watch: Callable[[int], None] | None = None,
) -> float:
    """Minimise the ranking loss with Adam, in training mode, and leave the model in evaluation mode.

    An epoch draws at least as many triples as there are training pairs, in whole batches; that the last batch is whole
    too is ours. Nothing here looks at the test pairs: the last epoch's model is the result.

    Args:
        model: Changed in place; its table is ``model.embedding``.
        represent: The rows of all users, then items, from the model: such as ``partial(model, adjacency)``.
        interactions: What to learn from, on the device of the model.
        epochs: How many.
        batch_size: Triples in a step.
        learning_rate: Adam's.
        generator: Source of the triples, on the same device.
        l2: Weight of :func:`batch_penalty`.
        schedule: ``constant``, or ``linear``: the learning rate falls to 0 over the training.
        cuda_graph: Replay one recorded step instead of launching its kernels one by one; only on a GPU.
        watch: Called after each epoch with the number of epochs done, in evaluation mode.

    Returns:
        The mean loss of the last epoch, the penalty included.

    Raises:
        UsageError: If a number is too small, the schedule is unknown, or a graph is asked for without a GPU.
    """
    if min(epochs, batch_size) < 1:
        raise UsageError(f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}.")
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    sampler = TripleSampler(interactions)
    on_gpu = sampler.device.type == "cuda"
    if cuda_graph and not on_gpu:
        raise UsageError("a CUDA graph needs a GPU: set cuda_graph=False.")
    rate = torch.tensor(learning_rate, device=sampler.device) if on_gpu else learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=on_gpu)
    step = _Step(model, represent, optimizer, interactions.num_users, l2)
    advance = GraphedStep(step) if cuda_graph else step
    steps = -(-interactions.train.shape[1] // batch_size)
    done = 0
    for epoch in range(1, epochs + 1):
        model.train()
        step.loss.zero_()
        for triples in sampler.draw(steps * batch_size, generator).split(batch_size, dim=1):
            if schedule == "linear":
                set_learning_rate(optimizer, learning_rate * (1 - done / (epochs * steps)))
            advance(triples)
            done += 1
        model.eval()
        if watch is not None:
            watch(epoch)
    return float(step.loss) / steps


class _Step:
    """One step of the optimizer; the loss adds up on the device."""

    def __init__(
        self,
        model: nn.Module,
        represent: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
        num_users: int,
        l2: float,
    ) -> None:
        assert isinstance(model.embedding, Tensor)
        self.embedding, self.represent, self.optimizer, self.l2 = model.embedding, represent, optimizer, l2
        device = self.embedding.device
        self.offset = torch.tensor([[0], [num_users], [num_users]], device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self, triples: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        nodes = (triples + self.offset).flatten()
        shape = (*triples.shape, -1)
        # index_select, whose gradient is an unsorted sum; that of indexing sorts the rows first.
        ranked = self.represent().index_select(0, nodes).view(shape)
        table = self.embedding.index_select(0, nodes).view(shape)
        loss = bpr_loss(*ranked) + self.l2 * batch_penalty(table)
        loss.backward()
        self.optimizer.step()
        self.loss += loss.detach()
