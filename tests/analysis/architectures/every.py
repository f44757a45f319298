"""All architectures."""

from __future__ import annotations

from tests.analysis.architectures.decoders import DECODERS, EXPERTS
from tests.analysis.architectures.others import OTHERS
from tests.analysis.architectures.special import SPECIAL

ARCHITECTURES = [*DECODERS, *EXPERTS, *OTHERS, *SPECIAL]
