"""Train the policies that the package ships, one per task, and write them to the package.

Usage: python scripts/train_selection_policies.py [TASK ...]

A file keeps the settings of its policy and how it was trained. Training graphs are configuration models whose exponents
are those of real graphs and, except for influence, the mixture of the studies. The score in the file was measured on
held-out configuration models: 2,000 nodes, and 300,000 for influence, whose hubs have many times the largest degree of
the training. After this training without a scale, the influence policy ranks such hubs too low: its scores are bounded
by the norms. A small power of the degree after the norms keeps them growing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normplace.lab.tasks.selection import Graph, mixed_graphs, partly_dismantled, powerlaw_configuration, ranking
from normplace.lab.tasks.selection.methods import classical_order
from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward, Selection
from normplace.lab.tasks.selection_names import TASKS
from normplace.lab.train.reinforce import train_policy
from normplace.models.policy import Policy
from normplace.models.policy_files import PolicySettings, save_policy

FOLDER = Path(__file__).parents[1] / "src" / "normplace" / "lab" / "tasks" / "selection" / "policies"
SETTINGS = {
    "dismantling": PolicySettings(aggregation="mean", features="degree"),
    "influence": PolicySettings(aggregation="mean", features="degree", scale="degree", power=0.25),
    "independent-set": PolicySettings(aggregation="mean", features="degree"),
}
SEED = 0
TRAINING: dict[str, Any] = {"steps": 600, "batch_size": 8, "samples": 16, "learning_rate": 3e-3}
EXPONENTS = (2.0, 3.0)
COUNT = 128
SEED_SHARE = 0.005
LARGE_SEEDS = 50
"""Number of seeds on the large held-out graphs."""


def heavy_tailed(count: int, low: int, high: int, generator: np.random.Generator) -> list[Graph]:
    """Configuration models with exponents from 2 to 3 and smallest degrees from 1 to 3."""
    graphs = []
    for _ in range(count):
        n = int(generator.integers(low, high + 1))
        exponent, smallest = float(generator.uniform(*EXPONENTS)), int(generator.integers(1, 4))
        graphs.append(powerlaw_configuration(n, exponent, smallest, generator))
    return graphs


def reward_of(task: str, simulations: int) -> Selection:
    """The reward: influence from a two-hundredth of the nodes, as seed sets on real graphs are small."""
    return InfluenceReward(SEED_SHARE, simulations) if task == "influence" else REWARDS[task]


def held_out_rewards(task: str, policy: Policy) -> tuple[float, float]:
    """Mean rewards of the policy and of the degree on held-out graphs."""
    generator, measure = np.random.default_rng(SEED + 1), reward_of(task, 200)
    if task == "influence":
        graphs = heavy_tailed(8, 300_000, 300_000, generator)
        measure = InfluenceReward(LARGE_SEEDS / graphs[0].num_nodes, 30)
    else:
        graphs = heavy_tailed(8, 2000, 2000, generator)
    policies = [ranking(graph, policy.score(graph)) for graph in graphs]
    degrees = [classical_order(graph, task, "degree") for graph in graphs]
    value, by_degree = (
        float(np.mean([measure.rewards(graph, order[None])[0] for graph, order in zip(graphs, orders, strict=True)]))
        for orders in (policies, degrees)
    )
    return value, by_degree


def train(task: str) -> None:
    """Train, measure and write the policy of one task."""
    settings = SETTINGS[task]
    generator = np.random.default_rng(SEED)
    if task == "influence":
        graphs, drawn = heavy_tailed(COUNT, 300, 1000, generator), f"{COUNT} configuration models of 300 to 1,000 nodes"
    else:
        graphs = [*mixed_graphs(COUNT, 40, 200, generator), *heavy_tailed(COUNT, 100, 500, generator)]
        drawn = f"{COUNT} mixed_graphs of 40 to 200 nodes, {COUNT} configuration models of 100 to 500 nodes"
    if task == "dismantling":
        graphs = [partly_dismantled(graph, generator) for graph in graphs]
    policy = settings.build(SEED)
    train_policy(policy, graphs, reward_of(task, 12), generator=torch.Generator().manual_seed(SEED), **TRAINING)
    value, by_degree = held_out_rewards(task, policy)
    record = {
        "task": task,
        "seed": SEED,
        **TRAINING,
        "graphs": drawn,
        "partly_dismantled": task == "dismantling",
        "seed_share": SEED_SHARE if task == "influence" else None,
        "held_out_reward": round(value, 4),
        "held_out_reward_of_degree": round(by_degree, 4),
        "torch": torch.__version__,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{task}.safetensors"
    save_policy(policy, settings, path, record)
    print(f"{path.name}: {path.stat().st_size} bytes, reward {value:.4f} on held-out graphs, degree {by_degree:.4f}")


def main() -> None:
    """Train the policies of the tasks that are named, or of all."""
    parser = argparse.ArgumentParser(description="Train the policies that the package ships.")
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    torch.set_num_threads(1)
    for task in parser.parse_args().tasks:
        train(task)


if __name__ == "__main__":
    main()
