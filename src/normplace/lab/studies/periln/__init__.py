"""Peri-LN: Revisiting Normalization Layer in the Transformer Architecture (arXiv 2502.02732)."""

from normplace.lab.studies.periln import bound, initialization, training
from normplace.lab.studies.periln.claims import CLAIMS
from normplace.lab.studies.periln.figures import figures
from normplace.lab.trials.study import Study

STUDY = Study(
    name="periln",
    aliases=("peri-ln",),
    title="Norms around each sublayer keep variance and gradients even",
    paper="Kim et al., Peri-LN: Revisiting Normalization Layer in the Transformer Architecture, arXiv 2502.02732",
    summary=(
        "Training: Transformers that differ in placement alone learn to predict bytes of Python's standard library, "
        "which every machine has. Every placement is trained at every learning rate with every seed and then judged at "
        "the rate that is best for it. Variance, gradients, outliers and headroom are measured before, a quarter "
        "through and after training.\n\n"
        "Bound: the gradient in the last matrix of one MLP sublayer beside the bound of Proposition 3.1.\n\n"
        "Initialization: Pre-LN and Peri-LN with 24 layers, trained from three kinds of initial weights; "
        "at full scale only.\n\n"
        "The paper's full text was not available to us: its sizes begin at 400 million parameters and 30 billion "
        "tokens, its learning rates and initial weights are not known to us. Sizes, rates, steps, initial weights "
        "(Xavier's for every placement in the training part) and thresholds are ours."
    ),
    reference="normplace.lab.studies.periln:STUDY",
    parts=(bound.PART, training.PART, initialization.PART),
    claims=CLAIMS,
    figures=figures,
)
