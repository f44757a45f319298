"""Recommendation: interactions of users with items, how to learn from them, and how to score a ranking of all items."""

from normplace.lab.tasks.recommend.bpr import TripleSampler, batch_penalty, bpr_loss
from normplace.lab.tasks.recommend.gowalla import gowalla_obstacle, load_gowalla, read_arrays, read_lists
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.tasks.recommend.movielens import load_movielens, movielens_obstacle, split_by_user
from normplace.lab.tasks.recommend.ranking import RankingScore, rank_all

__all__ = [
    # Data
    "Interactions",
    "load_gowalla",
    "gowalla_obstacle",
    "load_movielens",
    "movielens_obstacle",
    "read_arrays",
    "read_lists",
    "split_by_user",
    # Learning
    "TripleSampler",
    "bpr_loss",
    "batch_penalty",
    # Scoring
    "rank_all",
    "RankingScore",
]
