"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.drawing import figures_of
from normplace.lab.studies.periln.figures import bound, initialization, pretraining, training

figures = figures_of(training, initialization, pretraining, bound)
