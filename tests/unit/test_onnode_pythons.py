"""A Python that is brought to a node, with the real uv: from where, and in place of which."""

import json
import shutil
import sys
import sysconfig
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from gpuwright.environments import _listing
from gpuwright.onnode.environment import main
from gpuwright.onnode.outcome import NodeError
from gpuwright.onnode.uv import Uv
from gpuwright.python_rows import PythonRow
from tests.lab.hub import Hub
from tests.unit.test_onnode_environment import (
    MINOR,
    altered,
    is_for_all_to_write,
    sha256,
    small,
)

VERSION = "{}.{}.{}".format(*sys.version_info[:3])


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """This machine's own Python, packed as an archive of a Python that is brought is."""
    path = tmp_path_factory.mktemp("python") / "python.tar.gz"
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(sys.base_prefix) / f"bin/python{MINOR}"

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        left_out = {"site-packages", "dist-packages", "test", "idlelib", "__pycache__", "tkinter"}
        own = parts[-1].startswith("_sysconfigdata_")
        return None if left_out & set(parts) or member.issym() or own else member

    told = tmp_path_factory.mktemp("told") / "_sysconfigdata__linux_x86_64-linux-gnu.py"
    head = "# system configuration generated and used by the sysconfig module\n"
    told.write_text(f"{head}build_time_vars = {{'prefix': '/install', 'LIBDIR': '/install/lib'}}\n")
    with tarfile.open(path, "w:gz", compresslevel=1) as packed:
        packed.add(told, f"python/lib/python{MINOR}/{told.name}")
        packed.add(program.resolve(), f"python/bin/python{MINOR}")
        packed.add(library, f"python/lib/python{MINOR}", filter=wanted)
    return path


def work_with(tmp_path, uv, mirror, digest) -> Uv:
    row = PythonRow(
        id="test",
        python=VERSION,
        architecture="x86_64",
        path="20990101/python.tar.gz",
        sha256=digest,
        sources=(),
    )
    spec = {
        "engine_dir": str(tmp_path / "engines/vllm-1-key"),
        "lock": str(tmp_path / "lock"),
        "lock_id": "locks/test.txt",
        "uv": str(uv),
        "cache_dir": str(tmp_path / "cache"),
        "index": {"default": "http://127.0.0.1:9/simple", "timeout_seconds": 5},
        "requirements": {},
        "python": {
            "place": str(tmp_path / "pythons"),
            "directory": row.directory,
            "minor": MINOR,
            "version": VERSION,
            "mirror": mirror,
            "listing": json.dumps(_listing(row, mirror)),
        },
    }
    (tmp_path / "engines").mkdir(exist_ok=True)
    return Uv(spec, f"{spec['engine_dir']}.partial", 0)


def test_a_python_is_brought_from_a_mirror_once(tmp_path, uv, archive):
    digest = sha256(archive.read_bytes())
    with Hub() as hub:
        hub.add_file("mirror/20990101/python.tar.gz", archive)
        work = work_with(tmp_path, uv, f"{hub.url}/files/mirror", digest)
        path = Path(work.python())
        assert path.is_file()
        assert path.is_relative_to(tmp_path / "pythons")
        hub.forget_requests()
        assert Path(work.python()) == path
        assert hub.requests == []


def test_a_mirror_may_be_a_folder_of_the_node(tmp_path, uv, archive):
    place = tmp_path / "my mirror/20990101"
    place.mkdir(parents=True)
    shutil.copy(archive, place / "python.tar.gz")
    digest = sha256(archive.read_bytes())
    mirror = f"file://{quote(str(place.parent))}"
    assert Path(work_with(tmp_path, uv, mirror, digest).python()).is_file()


def test_a_python_with_another_hash_is_refused_with_its_mirror(tmp_path, uv, archive):
    with Hub() as hub:
        hub.add_file("mirror/20990101/python.tar.gz", archive)
        mirror = f"{hub.url}/files/mirror"
        with pytest.raises(NodeError) as failed:
            work_with(tmp_path, uv, mirror, "0" * 64).python()
    assert mirror in failed.value.error
    assert not (tmp_path / "pythons" / f"cpython-{VERSION}-linux-x86_64-gnu").exists()


def test_a_mirror_without_it_is_named(tmp_path, uv):
    with Hub() as hub:
        mirror = f"{hub.url}/files/mirror"
        with pytest.raises(NodeError) as failed:
            work_with(tmp_path, uv, mirror, "0" * 64).python()
    assert mirror in failed.value.error
    assert VERSION in failed.value.error


def test_a_python_that_is_not_what_was_brought_is_brought_again(tmp_path, uv, archive):
    digest = sha256(archive.read_bytes())
    with Hub() as hub:
        hub.add_file("mirror/20990101/python.tar.gz", archive)
        work = work_with(tmp_path, uv, f"{hub.url}/files/mirror", digest)
        program = Path(work.python())
        library = program.parents[1] / f"lib/python{MINOR}"
        changed = library / "json/decoder.py"
        for verify, path in (("quick", library / "sitecustomize.py"), ("full", changed)):
            was = path.read_bytes() if path.exists() else None
            path.write_text("import os\n")
            work.spec["verify"] = verify
            assert Path(work.python()) == program
            assert (path.read_bytes() if path.exists() else None) == was
        hub.fail(match="*", status=500)
        changed.write_text("import os\n")
        with pytest.raises(NodeError):
            work.python()
        assert changed.read_text() == "import os\n"
    assert [path.name for path in (tmp_path / "pythons").glob("*.partial*")] == []
    assert [path for path in tmp_path.rglob("*") if is_for_all_to_write(path)] == []


class Watched(Uv):
    """uv, and whether the Python that services use was there whenever uv had ended."""

    there = True

    def __call__(self, words: list[str], part: str, *held: int) -> None:
        try:
            super().__call__(words, part, *held)
        finally:
            self.there = self.there and self.old.exists()


def test_services_keep_their_python_while_it_is_brought_again(tmp_path, uv, archive):
    folder = tmp_path / "mirror/20990101"
    folder.mkdir(parents=True)
    shutil.copy(archive, folder / "python.tar.gz")
    digest = sha256(archive.read_bytes())
    made = work_with(tmp_path, uv, f"file://{folder.parent}", digest)
    program = Path(made.python())
    spoilt = program.parents[1] / f"lib/python{MINOR}/sitecustomize.py"
    spoilt.touch()
    again = Watched(made.spec, made.partial, 0)
    again.old = spoilt
    assert Path(again.python()) == program
    assert again.there
    assert not spoilt.exists()
    told = program.parents[1] / f"lib/python{MINOR}/_sysconfigdata__linux_x86_64-linux-gnu.py"
    assert f'"{program.parents[1]}/lib"' in told.read_text()
    assert sorted(path.name for path in (tmp_path / "pythons").iterdir()) == [
        f"cpython-{VERSION}-linux-x86_64-gnu"
    ]


def test_an_environment_is_looked_at_with_the_python_that_was_brought_for_it(tmp_path, uv, archive):
    with Hub() as hub:
        hub.add_file("mirror/20990101/python.tar.gz", archive)
        work = work_with(tmp_path, uv, f"{hub.url}/files/mirror", sha256(archive.read_bytes()))
        spec = small(tmp_path, uv) | {"python": work.spec["python"]}
        assert main(spec, None)["engine"] == "installed"
        assert altered(tmp_path, "full") == {}
        library = tmp_path / f"pythons/cpython-{VERSION}-linux-x86_64-gnu/lib/python{MINOR}"
        for path, quick in ((library / "json/decoder.py", False), (library / "json.py", True)):
            path.write_text("import os\n")
            found = altered(tmp_path, "full")[spec["engine_dir"]]
            assert found.startswith(str(path)), found
            assert (altered(tmp_path, "quick") != {}) == quick
            assert main(spec | {"verify": "full"}, None)["engine"] == "installed"
            assert altered(tmp_path, "full") == {}
