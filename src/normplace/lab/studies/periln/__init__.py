"""Peri-LN: Revisiting Normalization Layer in the Transformer Architecture (arXiv 2502.02732)."""

from normplace.lab.studies.periln import bound, initialization, pretraining, training
from normplace.lab.studies.periln.claims import CLAIMS
from normplace.lab.studies.periln.figures import figures
from normplace.lab.studies.periln.headline import HEADLINE
from normplace.lab.trials.study import Study

STUDY = Study(
    name="periln",
    aliases=("peri-ln",),
    title="Norms around each sublayer keep variance and gradients even",
    paper="Kim et al., Peri-LN: Revisiting Normalization Layer in the Transformer Architecture, arXiv 2502.02732",
    summary=(
        "Training: Transformers that differ only in norm placement are trained to predict bytes of Python's standard "
        "library, which every machine has. Every placement is trained at every learning rate with every seed and "
        "compared at its best learning rate. Variance, gradients, outliers and headroom are measured before training, "
        "after a quarter of it and after all of it.\n\n"
        "Bound: the gradient of the last matrix of one MLP sublayer, compared with the bound of Proposition 3.1.\n\n"
        "Initialization: Pre-LN and Peri-LN with 24 layers, trained from three kinds of initial weights; "
        "at full scale only.\n\n"
        "Pretraining: seven placements with 24 layers of width 512, trained on 60 and 300 million bytes of the "
        "sources, headers and documentation of installed Python packages, at learning rates that are extended until "
        "the best one has a lower and a higher neighbor; at full scale, on a GPU only.\n\n"
        "The paper's full text was not available to us. Its sizes start at 400 million parameters and 30 billion "
        "tokens; its learning rates and initial weights are not known to us. Sizes, learning rates, steps, initial "
        "weights (Xavier for every placement in the training part) and thresholds are our choices."
    ),
    reference="normplace.lab.studies.periln:STUDY",
    parts=(bound.PART, training.PART, initialization.PART, pretraining.PART),
    claims=CLAIMS,
    figures=figures,
    headline=HEADLINE,
    demo="Two of five seeds of Post-LN, Pre-LN and Peri-LN at three learning rates, and the gradient bound. Two seeds "
    "show how the variance grows; verdicts on training need five. The other placements are not in the demo.",
)
