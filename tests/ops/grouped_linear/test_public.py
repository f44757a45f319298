"""Invalid groups; tests/ops/test_contract.py compares values and derivatives with the definition."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.ops import grouped_linear


@pytest.mark.parametrize("group", [[-1, 0], [0, 3], [3, 3]])
def test_a_group_without_a_matrix_raises(group):
    """Its rows would be left as the memory was."""
    with pytest.raises(UsageError, match="from 0 to 2"):
        grouped_linear(torch.ones(2, 5), torch.ones(3, 4, 5), torch.tensor(group))


def test_no_groups_and_no_rows():
    y = grouped_linear(torch.ones(0, 5), torch.ones(0, 4, 5), torch.zeros(0, dtype=torch.int64))
    assert y.shape == (0, 4)
