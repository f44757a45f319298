"""Train DeeperGCN (Li et al. 2020, arXiv 2006.07739) on tasks of the Open Graph Benchmark, with the published settings.

- ``recipe``: the settings of each task, and the published numbers.
- ``network``, ``virtual_node``, ``edge_encoders``: the published networks, made of a :class:`GraphStack`.
- ``training``, ``node_training``, ``graph_training``: one epoch and one evaluation.
- ``checkpoint``, ``results``: what a seed's training resumes from, and its result.
- ``run``: all seeds of a task.
"""
