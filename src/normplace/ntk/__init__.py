"""Neural tangent kernels: how norm placement affects what a trained network can predict outside its data.

- :mod:`~normplace.ntk.empirical_kernel`: the exact kernel of any module.
- :mod:`~normplace.ntk.infinite_kernel`: the kernels of infinitely wide fully connected networks.
- :mod:`~normplace.ntk.prediction`: the trained network that a kernel predicts, and bounds on it.
- :mod:`~normplace.ntk.certification`: a proof that a network is bounded over all inputs, or a ray along which it grows.
"""

from normplace.ntk.certification.certificate import certificate
from normplace.ntk.certification.result import Certificate, Witness
from normplace.ntk.empirical_kernel.kernel import empirical, empirical_blocks
from normplace.ntk.infinite_kernel.kernel import FullyConnected, Kernels, infinite
from normplace.ntk.prediction.bound import Bound, bound
from normplace.ntk.prediction.predict import Prediction, predict

__all__ = [
    # Empirical kernel
    "empirical",
    "empirical_blocks",
    # Infinite-width kernels
    "FullyConnected",
    "infinite",
    "Kernels",
    # Prediction and bounds
    "predict",
    "Prediction",
    "bound",
    "Bound",
    # Certificate
    "certificate",
    "Certificate",
    "Witness",
]
