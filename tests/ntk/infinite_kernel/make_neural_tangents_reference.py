"""Writes neural_tangents_reference.json: kernels by neural-tangents, an independent JAX implementation.

Run once, in an environment of its own (neural-tangents does not import with present JAX):

    pip install jax==0.4.23 jaxlib==0.4.23 numpy==1.26.4 "scipy<1.13" tensorflow-cpu tf2jax dm-tree frozendict
    pip install --no-deps neural-tangents
    python tests/ntk/infinite_kernel/make_neural_tangents_reference.py

neural-tangents takes LayerNorm before the activation only; its default eps, 1e-12, is part of each recorded
case.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import neural_tangents.stax as stax  # noqa: E402  (after x64 is switched on)

EPS = 1e-12
CASES = [
    {"depth": 2, "activation": activation, "norm_at": list(at)}
    for activation in ("relu", "leaky_relu", "erf")
    for at in ((), (1,), (2,), (1, 2))
] + [{"depth": 4, "activation": "relu", "norm_at": [1, 3]}]
SLOPE, WEIGHT, BIAS, LAST = 0.2, 2.0, 0.01, 1.0
ACTIVATIONS = {"relu": stax.Relu, "leaky_relu": lambda: stax.LeakyRelu(SLOPE), "erf": stax.Erf}

# Tiny, duplicate, antipodal, distant and ordinary rows.
X1 = [
    [0.0, 0.0, 0.0],
    [0.3, -1.2, 0.7],
    [0.3, -1.2, 0.7],
    [-0.3, 1.2, -0.7],
    [25.0, -10.0, 5.0],
    [1e-3, 0.0, 0.0],
]
X2 = [[0.3, -1.2, 0.7], [2.0, 2.0, -1.0], [-250.0, 40.0, 3.0]]


def kernel_fn(case):
    layers = []
    for layer in range(1, case["depth"] + 1):
        layers.append(stax.Dense(64, W_std=WEIGHT**0.5, b_std=BIAS**0.5))
        if layer in case["norm_at"]:
            layers.append(stax.LayerNorm(eps=EPS))
        layers.append(ACTIVATIONS[case["activation"]]())
    layers.append(stax.Dense(1, W_std=LAST**0.5, b_std=BIAS**0.5))
    return stax.serial(*layers)[2]


def main():
    for case in CASES:
        kernel = kernel_fn(case)
        for name, other in (("symmetric", None), ("cross", np.array(X2))):
            both = kernel(np.array(X1), other, ("nngp", "ntk"))
            case[name] = {"nngp": np.asarray(both.nngp).tolist(), "ntk": np.asarray(both.ntk).tolist()}
    packages = ("neural-tangents", "jax", "jaxlib", "numpy")
    record = {
        "made_by": "tests/ntk/infinite_kernel/make_neural_tangents_reference.py",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "x1": X1,
        "x2": X2,
        "negative_slope": SLOPE,
        "weight_variance": WEIGHT,
        "bias_variance": BIAS,
        "last_weight_variance": LAST,
        "eps": EPS,
        "cases": CASES,
    }
    path = Path(__file__).with_name("neural_tangents_reference.json")
    path.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
