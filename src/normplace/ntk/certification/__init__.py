"""Boundedness of a network over all inputs: proof by operator rules, refutation by search along rays."""
