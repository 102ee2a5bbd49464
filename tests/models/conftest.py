"""What the machines of several modules work with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models.served import ServedDoors, Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server of the module."""
    with ServedDoors(tmp_path_factory.mktemp("served") / "data") as server:
        made = Site(server)
        yield made
        made.close()
