"""Trials, their results and the claims they are evidence for."""
