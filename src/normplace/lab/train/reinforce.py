"""Train a policy that orders nodes: Plackett-Luce sampling and REINFORCE with a leave-one-out baseline.

A Plackett-Luce order draws nodes one by one without replacement, each with probability proportional to exp(score); it
is the descending order of score + Gumbel noise (Yellott 1977). The baseline of a sampled order is the mean reward of
the other orders sampled on the same graph (Kool, van Hoof, Welling 2019), which needs no second network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from normplace.errors import UsageError, expect_range
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.rewards import Selection
from normplace.models.policy import Policy

PADDING = -1e9
"""Score of padding after the last node of a graph; finite, so that gradients are finite."""


def sample_orders(scores: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Sample Plackett-Luce orders.

    Args:
        scores: Node scores, (graphs, nodes).
        samples: Orders per graph.
        generator: Random generator, on the device of the scores.

    Returns:
        Node indices, (graphs, samples, nodes).
    """
    shape = (scores.shape[0], samples, scores.shape[1])
    noise = torch.rand(shape, generator=generator, device=scores.device).clamp(min=1e-20)
    return (scores.detach().unsqueeze(1) - (-noise.log()).log()).argsort(dim=-1, descending=True)


def order_log_probability(scores: Tensor, orders: Tensor, lengths: Tensor) -> Tensor:
    """Return the log-probability that a Plackett-Luce order begins with the first ``lengths`` nodes of each order.

    Args:
        scores: Node scores, (graphs, nodes).
        orders: Orders from :func:`sample_orders`.
        lengths: Number of nodes that count, per graph.

    Returns:
        Log-probabilities, (graphs, samples).

    Examples:
        >>> scores = torch.tensor([[0.0, 0.0, 0.0]])
        >>> order = torch.tensor([[[2, 0, 1]]])
        >>> order_log_probability(scores, order, torch.tensor([3])).exp().item()  # one of 3! equally likely
        0.1666...
    """
    ordered = scores.unsqueeze(1).expand(orders.shape).gather(-1, orders)
    remaining = ordered.flip(-1).logcumsumexp(-1).flip(-1)
    counts = torch.arange(orders.shape[-1], device=orders.device) < lengths[:, None, None]
    return torch.where(counts, ordered - remaining, 0.0).sum(-1)


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of a batch of graphs, and the mean reward of the orders that were sampled for it."""

    loss: Tensor
    mean_reward: float


def policy_loss(
    scores: Tensor, graphs: Sequence[Graph], reward: Selection, samples: int, *, generator: torch.Generator, seed: int
) -> PolicyLoss:
    """Sample orders, compute their rewards, and return the loss whose gradient REINFORCE follows.

    Args:
        scores: One score per node, graph after graph.
        graphs: The graphs.
        reward: Reward of an order.
        samples: Orders sampled per graph; at least 2, for the baseline.
        generator: Draws the orders; on the device of the scores.
        seed: Random seed of the rewards.
    """
    padded = torch.nn.utils.rnn.pad_sequence(
        list(scores.split([graph.num_nodes for graph in graphs])), batch_first=True, padding_value=PADDING
    )
    orders = sample_orders(padded, samples, generator)
    rewards = np.stack(
        [
            reward.rewards(graph, graph_orders[:, : graph.num_nodes], seed=seed)
            for graph, graph_orders in zip(graphs, orders.cpu().numpy(), strict=True)
        ]
    )
    returns = torch.from_numpy(rewards).to(padded)
    advantage = (returns - returns.mean(1, keepdim=True)) * samples / (samples - 1)
    lengths = torch.tensor([reward.length(graph) for graph in graphs], device=padded.device)
    loss = -(advantage * order_log_probability(padded, orders, lengths)).mean()
    return PolicyLoss(loss, float(rewards.mean()))


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
) -> list[float]:
    """Train a policy with Adam on random batches of graphs; the learning rate decays to zero along a cosine.

    Args:
        policy: Trained in place.
        graphs: Training graphs.
        reward: Reward of an order.
        steps: Optimizer steps.
        batch_size: Graphs per step.
        samples: Orders sampled per graph; at least 2, for the baseline.
        learning_rate: Initial learning rate.
        generator: Random generator for batches, features and orders; on the CPU.

    Returns:
        The mean reward of the sampled orders at every step.

    Raises:
        UsageError: If there are no graphs, or a number is too small.
    """
    if not graphs:
        raise UsageError("there are no graphs to train on: pass at least one.")
    for name, value, least in (("steps", steps, 1), ("batch_size", batch_size, 1), ("samples", samples, 2)):
        expect_range(name, value, least=least)
    prepared = [policy.prepare(graph) for graph in graphs]
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    noise = torch.Generator(policy.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    history = []
    for step in range(steps):
        drawn = torch.randint(len(graphs), (batch_size,), generator=generator).tolist()
        scores = policy([prepared[index] for index in drawn], generator)
        sampled = policy_loss(scores, [graphs[index] for index in drawn], reward, samples, generator=noise, seed=step)
        optimizer.zero_grad(set_to_none=True)
        sampled.loss.backward()
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        history.append(sampled.mean_reward)
    return history
