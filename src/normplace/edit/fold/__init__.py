"""Fold the gains of norms into the weights that read them."""
