"""Fixtures that several modules of unit tests share."""

from pathlib import Path

import pytest

from tests.unit.onnode_rig import in_namespace


@pytest.fixture(scope="session")
def uv() -> Path:
    """The real one."""
    from uv import find_uv_bin

    return Path(find_uv_bin())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A checkpoint's directory in a model store; neither exists yet."""
    return tmp_path / "models" / "smol"


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """Where a small filesystem can be mounted in a namespace, to see it filling up."""
    place = tmp_path / "disk"
    place.mkdir()
    if in_namespace(f"mount -t tmpfs none {place}").returncode:
        pytest.skip("no filesystem can be mounted here")
    return place
