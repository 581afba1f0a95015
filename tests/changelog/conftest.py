from collections.abc import Iterator

import pytest
from changelog_harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.gate.opened.set()
    harness.uploader.close()
