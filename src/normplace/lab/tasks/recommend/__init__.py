"""Recommendation: user-item interactions, the BPR loss and its sampler, and scores of a full ranking."""

from normplace.lab.tasks.recommend.bpr import TripleSampler, batch_penalty, bpr_loss
from normplace.lab.tasks.recommend.gowalla import load_gowalla, read_array_split, read_text_split
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.tasks.recommend.movielens import load_movielens, load_ratings, split_by_user
from normplace.lab.tasks.recommend.ranking import RankingScore, rank_all

__all__ = [
    # Data
    "Interactions",
    "load_gowalla",
    "load_movielens",
    "load_ratings",
    "read_array_split",
    "read_text_split",
    "split_by_user",
    # Training
    "TripleSampler",
    "bpr_loss",
    "batch_penalty",
    # Scoring
    "rank_all",
    "RankingScore",
]
