"""One server for all runs of this folder, with a database for each."""

from collections.abc import Iterator

import pytest

from tests.chaos.database import folder
from tests.chaos.harness import Ground


@pytest.fixture(scope="package")
def ground() -> Iterator[Ground]:
    with folder() as place, Ground(place) as ground:
        yield ground
