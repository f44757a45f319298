"""Neural tangent kernels: what the position of a norm does to what training can reach."""

from normplace.ntk.bound import Bound, bound
from normplace.ntk.certificate import Certificate, Witness, certificate
from normplace.ntk.empirical import empirical, empirical_blocks
from normplace.ntk.infinite import FullyConnected, Kernels, infinite
from normplace.ntk.predict import Prediction, predict

__all__ = [
    # The kernel of a network as it is
    "empirical",
    "empirical_blocks",
    # The kernel of its infinitely wide limit
    "FullyConnected",
    "infinite",
    "Kernels",
    # What training with it predicts, and how far that can reach
    "predict",
    "Prediction",
    "bound",
    "Bound",
    "certificate",
    "Certificate",
    "Witness",
]
