import shutil

import pytest

from tools.ask_engine import environment_of


@pytest.fixture(scope="package")
def environments():
    """The environment of an engine's release. One stands at a time: each takes 9-10 GB."""
    standing = []

    def leave():
        for environment in standing:
            if environment.seconds:
                shutil.rmtree(environment.directory)
        standing.clear()

    def enter(engine, release):
        if not standing or (standing[0].engine, standing[0].release) != (engine, release):
            leave()
            standing.append(environment_of(engine, release))
        return standing[0]

    yield enter
    leave()
