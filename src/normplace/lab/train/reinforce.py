"""Training a policy on orders: Plackett-Luce sampling and REINFORCE with a leave-one-out baseline.

A Plackett-Luce order draws node after node without replacement, each with probability proportional to exp(score); it is
the order of score + Gumbel noise (Yellott 1977). The baseline of a sampled order is the mean reward of the other orders
sampled on the same graph (Kool, van Hoof, Welling 2019), which needs no second network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from normplace.errors import UsageError
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.rewards import Selection
from normplace.models.policy import Policy

ABSENT = -1e9  # the score of a place past the end of a graph: finite, so that gradients are


def sample_orders(scores: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Orders drawn by Plackett-Luce.

    Args:
        scores: One row per graph.
        samples: Orders of each row.
        generator: Draws them, on the device of the scores.

    Returns:
        Places in the row, shape (rows, samples, length of a row).
    """
    shape = (scores.shape[0], samples, scores.shape[1])
    noise = torch.rand(shape, generator=generator, device=scores.device).clamp(min=1e-20)
    return (scores.detach().unsqueeze(1) - (-noise.log()).log()).argsort(dim=-1, descending=True)


def order_log_probability(scores: Tensor, orders: Tensor, lengths: Tensor) -> Tensor:
    """The log-probability that Plackett-Luce begins with the first ``lengths`` entries of each order.

    Args:
        scores: One row per graph.
        orders: As :func:`sample_orders` returns them.
        lengths: How many entries count, one number per row.

    Returns:
        One number per row and order.

    Example:
        >>> scores = torch.tensor([[0.0, 0.0, 0.0]])
        >>> order = torch.tensor([[[2, 0, 1]]])
        >>> order_log_probability(scores, order, torch.tensor([3])).exp().item()  # one of 3! equally likely
        0.1666...
    """
    ordered = scores.unsqueeze(1).expand(orders.shape).gather(-1, orders)
    remaining = ordered.flip(-1).logcumsumexp(-1).flip(-1)
    counts = torch.arange(orders.shape[-1], device=orders.device) < lengths[:, None, None]
    return torch.where(counts, ordered - remaining, 0.0).sum(-1)


def train_policy(
    policy: Policy,
    graphs: Sequence[Graph],
    reward: Selection,
    *,
    steps: int = 300,
    batch_size: int = 8,
    samples: int = 16,
    learning_rate: float = 3e-3,
    generator: torch.Generator,
    on_step: Callable[[int, float], None] = lambda step, mean_reward: None,
) -> list[float]:
    """Train on random batches of graphs.

    Args:
        policy: Changed in place.
        graphs: To train on.
        reward: Of an order.
        steps: Of Adam, with the learning rate falling to zero along a cosine.
        batch_size: Graphs in a step.
        samples: Orders sampled of each graph; at least 2, for the baseline.
        learning_rate: The first.
        generator: Draws batches, features and orders; on the CPU.
        on_step: Called after every step with its number and its mean reward.

    Returns:
        The mean reward of the sampled orders at every step.

    Raises:
        UsageError: If there is no graph, or a number is too small.
    """
    if not graphs:
        raise UsageError("there are no graphs to train on: give at least one.")
    for name, value, least in (("steps", steps, 1), ("batch_size", batch_size, 1), ("samples", samples, 2)):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}.")
    prepared = [policy.prepare(graph) for graph in graphs]
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    noise = torch.Generator(policy.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    history = []
    for step in range(steps):
        chosen = [prepared[i] for i in torch.randint(len(graphs), (batch_size,), generator=generator).tolist()]
        scores = torch.nn.utils.rnn.pad_sequence(
            list(policy(chosen, generator).split([one.graph.num_nodes for one in chosen])),
            batch_first=True,
            padding_value=ABSENT,
        )
        orders = sample_orders(scores, samples, noise)
        places = orders.cpu().numpy()
        rewards = np.stack(
            [
                reward.rewards(one.graph, rows[:, : one.graph.num_nodes], seed=step)
                for one, rows in zip(chosen, places, strict=True)
            ]
        )
        gained = torch.from_numpy(rewards).to(scores)
        advantage = (gained - gained.mean(1, keepdim=True)) * samples / (samples - 1)
        lengths = torch.tensor([reward.length(one.graph) for one in chosen], device=scores.device)
        loss = -(advantage * order_log_probability(scores, orders, lengths)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        history.append(float(rewards.mean()))
        on_step(step, history[-1])
    return history
