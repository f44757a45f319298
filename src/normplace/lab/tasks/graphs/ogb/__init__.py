"""Tasks of the Open Graph Benchmark (Hu et al. 2020, arXiv 2005.00687), read from the files that ``ogb`` downloads.

Neither the package ``ogb`` nor a network is needed.

- ``catalog``: the tasks, with their metrics, splits and folders.
- ``files``: tables, splits and binary files.
- ``node_graph``: one graph with labels of its nodes.
- ``graph_set``: many graphs with a label each.
- ``subgraphs``: random clusters and sampled neighbours of a large graph.
- ``metrics``: accuracy, ROC-AUC and average precision over several labels, some of them missing.
"""
