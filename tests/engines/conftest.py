import shutil
from pathlib import Path

import pytest

from tools.ask_engine import environment_of

HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def environments():
    """The environment of an engine's release. One stands at a time: each takes 9-10 GB."""
    standing = []

    def leave():
        for environment in standing:
            if environment.seconds:
                shutil.rmtree(environment.directory)
                # It holds the same files once more as soon as the environment is gone.
                shutil.rmtree(environment.directory.parent / "cache", ignore_errors=True)
        standing.clear()

    def enter(engine, release):
        if not standing or (standing[0].engine, standing[0].release) != (engine, release):
            leave()
            standing.append(environment_of(engine, release))
        return standing[0]

    yield enter
    leave()


def pytest_collection_modifyitems(config, items):
    """Leave these out unless they are asked for by their marker: each installs 9-10 GB. Then all
    that one environment is for comes together."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    if "slow" in (config.option.markexpr or ""):
        ours.sort(key=lambda item: item.callspec.id)
        items[:] = [item for item in items if item not in ours] + ours
    elif ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
