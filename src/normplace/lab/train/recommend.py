"""Train a recommender with Bayesian personalised ranking (BPR), without synchronizing with the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_range
from normplace.lab.tasks.recommend.bpr import TripleSampler, batch_penalty, bpr_loss
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.train.cuda_graph import GraphedStep, set_learning_rate

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
    watch: Callable[[int], bool | None] | None = None,
) -> float:
    """Minimise the ranking loss with Adam in training mode; the model ends in evaluation mode.

    An epoch draws at least as many triples as there are training pairs, in full batches; filling the last batch is our
    choice. The test pairs are never used: the result is the model of the last epoch.

    Args:
        model: Trained in place; its embedding table is ``model.embedding``.
        represent: Returns the representations of all users, then of all items, such as ``partial(model, adjacency)``.
        interactions: Training data, on the model's device.
        epochs: Number of epochs.
        batch_size: Triples per step.
        learning_rate: Learning rate of Adam.
        generator: Random generator for the triples, on the same device.
        l2: Weight of :func:`batch_penalty`.
        schedule: ``constant``, or ``linear``: the learning rate decays to 0.
        cuda_graph: Whether to replay a recorded step instead of launching its kernels one by one; only on a GPU.
        watch: Called after each epoch with the number of epochs so far, in evaluation mode; training ends if it returns
            True.

    Returns:
        The mean loss of the last epoch, with the penalty.

    Raises:
        UsageError: If a number is too small, the schedule is unknown, or a CUDA graph is requested without a GPU.
    """
    expect_range("epochs", epochs, least=1)
    expect_range("batch_size", batch_size, least=1)
    expect_choice("schedule", schedule, SCHEDULES)
    sampler = TripleSampler(interactions)
    on_gpu = sampler.device.type == "cuda"
    if cuda_graph and not on_gpu:
        raise UsageError("a CUDA graph needs a GPU: set cuda_graph=False.")
    initial = torch.tensor(learning_rate, device=sampler.device) if on_gpu else learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=initial, fused=True, capturable=on_gpu)
    step = _Step(model, represent, optimizer, interactions.num_users, l2)
    take_step = GraphedStep(step) if cuda_graph else step
    steps_per_epoch = -(-interactions.train.shape[1] // batch_size)
    steps_taken = 0
    for epoch in range(1, epochs + 1):
        model.train()
        step.loss.zero_()
        for triples in sampler.draw(steps_per_epoch * batch_size, generator).split(batch_size, dim=1):
            if schedule == "linear":
                set_learning_rate(optimizer, learning_rate * (1 - steps_taken / (epochs * steps_per_epoch)))
            take_step(triples)
            steps_taken += 1
        model.eval()
        if watch is not None and watch(epoch):
            break
    return float(step.loss) / steps_per_epoch


class _Step:
    """One optimizer step; the loss accumulates on the device."""

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
        # index_select: its gradient is an unsorted sum, whereas that of indexing sorts the indices first.
        ranked = self.represent().index_select(0, nodes).view(shape)
        table = self.embedding.index_select(0, nodes).view(shape)
        loss = bpr_loss(*ranked) + self.l2 * batch_penalty(table)
        loss.backward()
        self.optimizer.step()
        self.loss += loss.detach()
