"""The deployment that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deployment import compose
from tests.deployment.stage import Stage, can_make_namespaces


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    from tests.deployment.test_faults import VARIABLES

    folder = tmp_path_factory.mktemp("stage")
    with Stage(folder, compose.SECURE, has_namespaces=can_make_namespaces(), variables=VARIABLES) as stage:
        stage.up()
        yield stage
