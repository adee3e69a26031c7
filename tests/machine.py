"""A folder for the locks and notes of tests, so that they neither meet real runs on this machine nor each other's."""

from collections.abc import Iterator

import pytest

from perf.files import MACHINE_FOLDER_ENV


@pytest.fixture(scope="session", autouse=True)
def machine_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A fixture and not a line of a conftest.py: those are read by a session that measures for real, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MACHINE_FOLDER_ENV, str(tmp_path_factory.mktemp("machine")))
        yield
