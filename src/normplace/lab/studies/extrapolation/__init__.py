"""Just One Layer Norm Guarantees Stable Extrapolation (arXiv 2505.14512)."""

from normplace.lab.studies.extrapolation import (
    activations,
    area,
    bounds,
    certificates,
    faces,
    kernels,
    linearized,
    protein,
    sequence,
    structure,
    toy,
    variants,
    weak_faces,
    wide,
)
from normplace.lab.studies.extrapolation.claims import CLAIMS
from normplace.lab.studies.extrapolation.figures import figures
from normplace.lab.studies.extrapolation.headline import HEADLINE
from normplace.lab.trials.study import Study

STUDY = Study(
    name="extrapolation",
    title="One LayerNorm keeps a network bounded outside its data",
    paper="Ziomek, Whittle, Osborne, Just One Layer Norm Guarantees Stable Extrapolation, arXiv 2505.14512",
    summary=(
        "Toy: MLPs with two hidden layers of 128 ReLU units are trained on 100 points of a sinusoid, a line or a "
        "parabola on [-3, 3] and evaluated up to a thousand times farther out. A LayerNorm without learned gain or "
        "shift is placed between linear map and activation of no hidden layer, the first, the last, or every one. "
        "Width, initialization, optimizer and epochs are the paper's. Range, frequency and noise of the data, "
        "which the paper does not give, and the thresholds are our choices. Variants use GELU or SiLU instead of "
        "ReLU, or BatchNorm instead of LayerNorm.\n\n"
        "Kernels: the tangent kernel of these networks at initialization on [-25, 25]², compared with that of the "
        "infinite-width limit. Structure: the same kernel between different inputs. Activations: kernels of leaky "
        "ReLU, GELU, SiLU, erf and powers of ReLU. Wide: how trained networks approach the limit's prediction as the "
        "width grows; linearized: how they approach the prediction of their own kernel. Bounds: the bound of the "
        "theorem against the largest prediction that a search finds. Certificates: proofs of boundedness of random "
        "networks against a search for growth.\n\n"
        "Sequence: a decoder-only Transformer of two layers is trained on straight lines at positions 1 to 30 and "
        "continues them to position 100. Its blocks have no norms, which is our choice, so that the norm after the "
        "embedding is the only one.\n\n"
        "Protein: the same MLPs and XGBoost are trained on UCI's proteins below 20,000 Å² and predict the larger ones. "
        "Our choices: standardizing inputs and target on the training rows, and fewer rows and epochs at laptop scale. "
        "Faces: the MLPs are trained to predict age from frozen UTKFace descriptors of four ethnicity codes and "
        "predict the fifth. The user supplies the descriptors; the paper's come from a ResNet-18. Area and weak faces "
        "repeat both with new seeds, for the error against the area and with descriptors that were made weaker."
    ),
    reference="normplace.lab.studies.extrapolation:STUDY",
    parts=(
        *(toy.PART, kernels.PART, structure.PART, activations.PART, wide.PART, linearized.PART, bounds.PART),
        *(certificates.PART, variants.PART, sequence.PART, protein.PART, area.PART, faces.PART, weak_faces.PART),
    ),
    claims=CLAIMS,
    figures=figures,
    headline=HEADLINE,
    demo="Three of five seeds of the toy networks, and all tangent kernels. Three seeds show which networks stay "
    "bounded; verdicts on them need five. R² on proteins needs the UCI data.",
)
