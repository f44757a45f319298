"""Does a regression network stay in range outside its data, and what does one LayerNorm change?

- ``table``: rows of a CSV file.
- ``predictor``: a PyTorch module or an estimator as a function of rows.
- ``search``: lines that leave the data, and where the predictions leave the range of the targets.
- ``run``: :func:`extrapolate`, which puts these together with the certificate.
- ``result``, ``page``: what is reported.
"""

from normplace.lab.extrapolate.result import Extrapolation
from normplace.lab.extrapolate.run import extrapolate
from normplace.lab.extrapolate.table import Table, read_table

__all__ = ["Extrapolation", "Table", "extrapolate", "read_table"]
