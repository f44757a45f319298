"""PostDeg: Placement Beats Parameterization in LayerNorm GNNs (arXiv 2606.14022)."""
