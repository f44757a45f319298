"""Data sets, random tasks, splits and metrics; no models.

- :mod:`~normplace.lab.tasks.regression`: toy functions, protein and faces, with tests outside the training data.
- :mod:`~normplace.lab.tasks.graphs`: node labels, molecules, mines on a grid.
- :mod:`~normplace.lab.tasks.sequences`: copying, look-up, recall, text, straight lines.
- :mod:`~normplace.lab.tasks.recommend`: user-item interactions and their ranking.
- :mod:`~normplace.lab.tasks.selection`: node selection on graphs and its classical methods.
- :mod:`~normplace.lab.tasks.data_files` and :mod:`~normplace.lab.tasks.known_table`: files and their checks.
"""
