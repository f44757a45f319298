"""Just One Layer Norm Guarantees Stable Extrapolation (arXiv 2505.14512)."""

from normplace.lab.study import Study
from normplace.studies.extrapolation import toy
from normplace.studies.extrapolation.claims import CLAIMS
from normplace.studies.extrapolation.figures import figures

STUDY = Study(
    name="extrapolation",
    title="One LayerNorm keeps a network bounded outside its data",
    paper="Ziomek, Whittle, Osborne, Just One Layer Norm Guarantees Stable Extrapolation, arXiv 2505.14512",
    summary=(
        "Two hidden layers of 128 ReLU units learn 100 points of a sinusoid, a line or a parabola on [-3, 3], then "
        "predict up to a thousand times farther out. The LayerNorm has no learned gain or shift and stands between a "
        "hidden layer's linear map and its activation: nowhere, in the first, in the last, or in every hidden layer. "
        "Width, initialisation, optimizer and epochs are the paper's; the data's range, frequency and noise, which its "
        "text does not give, are ours, and so are the thresholds."
    ),
    reference="normplace.studies.extrapolation:STUDY",
    parts=(toy.PART,),
    claims=CLAIMS,
    figures=figures,
)
