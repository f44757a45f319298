"""normplace: where should the normalization sit?"""

from normplace._version import __version__
from normplace.errors import UsageError

__all__ = ["UsageError", "__version__"]
