"""Neural tangent kernels: what the position of a norm does to what training can reach."""

from normplace.ntk.bound import Bound, bound
from normplace.ntk.certificate import Certificate, certificate
from normplace.ntk.infinite import FullyConnected, Kernels, infinite
from normplace.ntk.predict import Prediction, predict

__all__ = [
    "Bound",
    "Certificate",
    "FullyConnected",
    "Kernels",
    "Prediction",
    "bound",
    "certificate",
    "infinite",
    "predict",
]
