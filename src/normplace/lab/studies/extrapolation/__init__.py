"""Just One Layer Norm Guarantees Stable Extrapolation (arXiv 2505.14512)."""

from normplace.lab.studies.extrapolation import faces, kernels, protein, sequence, toy, variants, wide
from normplace.lab.studies.extrapolation.claims import CLAIMS
from normplace.lab.studies.extrapolation.figures import figures
from normplace.lab.trials.study import Study

STUDY = Study(
    name="extrapolation",
    title="One LayerNorm keeps a network bounded outside its data",
    paper="Ziomek, Whittle, Osborne, Just One Layer Norm Guarantees Stable Extrapolation, arXiv 2505.14512",
    summary=(
        "Toy: two hidden layers of 128 ReLU units learn 100 points of a sinusoid, a line or a parabola on [-3, 3], "
        "then predict up to a thousand times farther out. The LayerNorm has no learned gain or shift and stands "
        "between a hidden layer's linear map and its activation: nowhere, in the first, in the last, or in every "
        "hidden layer. Width, initialisation, optimizer and epochs are the paper's; the data's range, frequency "
        "and noise, which its text does not give, are ours, and so are the thresholds. The variants replace ReLU "
        "by GELU or SiLU, or LayerNorm by BatchNorm.\n\n"
        "Kernels: the tangent kernel of such networks at initialisation on [-25, 25]², beside that of their infinitely "
        "wide limit, and how trained networks approach the limit's prediction as they widen.\n\n"
        "Sequence: a decoder-only Transformer of two layers learns straight lines at positions 1 to 30 and "
        "continues them to 100. That its blocks hold no norm, so that the one after the embedding is the only one, "
        "is ours.\n\n"
        "Protein: the same networks and XGBoost learn UCI's proteins under 20,000 Å² and predict the larger ones. "
        "Standardising inputs and target on the training rows is ours, as are the fewer rows and epochs at laptop "
        "scale. Faces: the networks learn age from frozen UTKFace descriptors of four ethnicity codes and predict "
        "the fifth; the backbone is whatever made the user's descriptors, not the paper's ResNet-18."
    ),
    reference="normplace.lab.studies.extrapolation:STUDY",
    parts=(toy.PART, kernels.PART, wide.PART, variants.PART, sequence.PART, protein.PART, faces.PART),
    claims=CLAIMS,
    figures=figures,
)
