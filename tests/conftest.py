"""No test reads the user's data or the network: what needs a file is given one made for it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def nothing_from_outside(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NORMPLACE_DATA", raising=False)
        patch.setenv("NORMPLACE_OFFLINE", "1")
        patch.setenv("NORMPLACE_CACHE", str(tmp_path_factory.mktemp("cache") / "never-made"))
        yield
