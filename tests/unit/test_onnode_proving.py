"""Where and how an engine's own Python is run to see what it says."""

import getpass
import sys

from gpuwright.onnode.proving import Prover


def test_an_engine_is_asked_in_a_directory_of_its_users_own(tmp_path):
    python = tmp_path / "engine/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    prover = Prover(
        *(str(tmp_path / name) for name in ("engine", "scratch")), getpass.getuser(), 60
    )
    told, _ = prover.ask("import json, os; print(json.dumps({'here': os.getcwd()}))", {}, {})
    assert told == {"here": str(tmp_path / "scratch/home")}
