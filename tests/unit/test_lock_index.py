"""Where packages come from is a setting: each one, with the real uv and a server that needs it."""

import contextlib
import json
import re
import shutil
import sys

import pytest
import yaml

from gpuwright.host import Host
from gpuwright.load import MATRIX, load_matrix
from gpuwright.lock_rows import LockRow
from gpuwright.onnode.environment import Installation
from gpuwright.onnode.outcome import NodeError
from gpuwright.selection import decide
from gpuwright.strict import read_row
from gpuwright.want import Want
from tests.unit.index_rig import NOWHERE, Site, certificates, serve
from tests.unit.test_lock_install import HERE, INPUTS, wheel
from tools import golden, lock
from tools.lock_resolve import LockError, UnreachedError, lowest, resolve
from tools.package_index import PackageIndex, UvError, bytes_at

VENDORS = ("tensorrt-llm", "1.2.1")
SERVE = """
class Option:
    param_type_name, secondary_opts, is_flag, multiple = "option", (), False, False
    def __init__(self, *names, choices=None):
        self.opts, self.type = names, type("Type", (), {"choices": choices})

class serve:
    params = [Option("--host"), Option("--backend", choices=("pytorch", "tensorrt"))]
"""
ARGUMENTS = """
class Field:
    default = "TRTLLM"

class TorchLlmArgs:
    model_fields = {"attn_backend": Field}
"""
BACKEND = """
def get_attention_backend(name):
    return {"TRTLLM": object}[name]
"""
ENGINE = {
    "tensorrt_llm/__init__.py": "",
    "tensorrt_llm/commands/__init__.py": "",
    "tensorrt_llm/commands/serve.py": SERVE,
    "tensorrt_llm/llmapi/__init__.py": "",
    "tensorrt_llm/llmapi/llm_args.py": ARGUMENTS,
    "tensorrt_llm/_torch/__init__.py": "",
    "tensorrt_llm/_torch/attention_backend/__init__.py": "",
    "tensorrt_llm/_torch/attention_backend/utils.py": BACKEND,
}
HEADER = {"nvidia/cu13/include/cuda.h": "CUresult cuInit(unsigned int flags);\n"}


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """None of this machine's settings counts, and nothing of a server before is remembered."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "wheels"
    path.mkdir()
    wheel(path, "engine", "1.0", needs=["library"])
    wheel(path, "library", "1.1")
    return path


@pytest.fixture
def scratch(tmp_path):
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def names(index, scratch):
    return set(resolve(INPUTS, index, scratch, {})[HERE])


def installed(index, tmp_path, folder, **more):
    """What the node's own program says of the same setting; the environment's packages."""
    found = resolve(INPUTS, PackageIndex(offline=True, find_links=(str(folder),)), tmp_path, {})
    spec = {
        "engine_dir": str(tmp_path / "engines/engine-1-key"),
        "lock_id": "locks/test.txt",
        "uv": str(uv_program()),
        "cache_dir": str(tmp_path / "node-cache"),
        "index": {"timeout_seconds": 5, **index},
        "requirements": {f"{w.name}=={w.version}": [w.sha256] for w in found[HERE].values()},
        "python": {"executable": sys.executable},
        **more,
    }
    (tmp_path / "engines").mkdir(exist_ok=True)
    work = Installation(spec, 0)
    work.install()
    places = (tmp_path / "engines").glob("*.partial/lib/python*/site-packages/*.dist-info")
    return {path.name.partition("-")[0] for path in places}


def uv_program():
    from uv import find_uv_bin

    return find_uv_bin()


def test_an_index_is_asked_by_its_url(folder, scratch, tmp_path):
    with serve(Site(folder=folder)) as site:
        assert names(PackageIndex(default=site.url), scratch) == {"engine", "library"}
        assert installed({"default": site.url}, tmp_path, folder) == {"engine", "library"}


def test_an_index_whose_pages_tell_no_sizes_is_asked_for_them(folder, scratch):
    with serve(Site(folder=folder, plain=True)) as site:
        wheels = resolve(INPUTS, PackageIndex(default=site.url), scratch, {})[HERE]
    for each in wheels.values():
        path = folder / f"{each.name}-{each.version}-py3-none-any.whl"
        assert each.bytes == path.stat().st_size
        assert not each.local


def test_a_further_index_has_its_say_before_the_first(folder, scratch, tmp_path):
    stub, other = tmp_path / "stub", tmp_path / "other"
    for path in (stub, other):
        path.mkdir()
    (folder / "library-1.1-py3-none-any.whl").rename(other / "library-1.1-py3-none-any.whl")
    # The first holds what the further one has, too, but a source alone.
    (folder / "library-1.1.tar.gz").write_bytes(b"")
    with serve(Site(folder=folder)) as first, serve(Site(folder=other)) as further:
        with pytest.raises(LockError, match="library"):
            names(PackageIndex(default=first.url), scratch)
        both = PackageIndex(default=first.url, extra=(further.url,))
        assert names(both, scratch) == {"engine", "library"}
        (folder / "library-1.1.tar.gz").unlink()
        (folder / "library-1.1-py3-none-any.whl").write_bytes(
            (other / "library-1.1-py3-none-any.whl").read_bytes()
        )
        (other / "library-1.1-py3-none-any.whl").unlink()
        found = installed({"default": first.url, "extra": [further.url]}, tmp_path, folder)
        assert found == {"engine", "library"}


def test_a_folder_of_wheels_adds_to_an_index(folder, scratch, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (folder / "library-1.1-py3-none-any.whl").rename(own / "library-1.1-py3-none-any.whl")
    with serve(Site(folder=folder)) as site:
        index = PackageIndex(default=site.url, find_links=(str(own),))
        found = resolve(INPUTS, index, scratch, {})[HERE]
    assert {wheel.name: wheel.local for wheel in found.values()} == {
        "engine": False,
        "library": True,
    }


def test_offline_no_index_is_asked(folder, scratch, tmp_path):
    with serve(Site(folder=folder)) as site:
        index = PackageIndex(default=site.url, find_links=(str(folder),), offline=True)
        assert names(index, scratch) == {"engine", "library"}
        offline = {"default": site.url, "offline": str(folder)}
        assert installed(offline, tmp_path, folder) == {"engine", "library"}
        assert site.seen == []


def test_a_certificate_is_checked_with_the_bundle_that_is_named(folder, scratch, tmp_path):
    authority, context = certificates(tmp_path)
    with serve(Site(folder=folder), context) as site:
        trusting = PackageIndex(default=site.url, ca_bundle=authority)
        assert names(trusting, scratch) == {"engine", "library"}
        url = f"{site.root}/packages/engine-1.0-py3-none-any.whl"
        assert bytes_at(url, trusting) == (folder / "engine-1.0-py3-none-any.whl").stat().st_size
        with pytest.raises(UnreachedError, match="UnknownIssuer"):
            names(PackageIndex(default=site.url), scratch)
        with pytest.raises(UvError, match="its size is not told"):
            bytes_at(url, PackageIndex())
        told = {"default": site.url, "ca_bundle": str(authority)}
        assert installed(told, tmp_path, folder) == {"engine", "library"}


def test_who_distrusts_an_index_installs_nothing_from_it(folder, tmp_path):
    _, context = certificates(tmp_path)
    with (
        serve(Site(folder=folder), context) as site,
        pytest.raises(NodeError, match=rf"locks/test.txt: .*{site.url}.*UnknownIssuer"),
    ):
        installed({"default": site.url}, tmp_path, folder)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_named_is_the_only_way(scheme, folder, scratch, tmp_path):
    authority, context = certificates(tmp_path)
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(serve(Site(folder=folder), context))
        proxy = stack.enter_context(serve(Site(folder=folder, tunnel_to=behind.port)))
        url = f"{scheme}://{NOWHERE}/simple"
        through = PackageIndex(default=url, ca_bundle=authority, proxy=proxy.root)
        assert names(through, scratch) == {"engine", "library"}
        file = url.replace("simple", "packages/engine-1.0-py3-none-any.whl")
        assert bytes_at(file, through) > 0
        told = {"default": url, "ca_bundle": str(authority), "proxy": proxy.root}
        assert installed(told, tmp_path, folder) == {"engine", "library"}
        methods = {method for method, target in proxy.seen if NOWHERE in target}
        assert methods == ({"CONNECT"} if scheme == "https" else {"GET", "HEAD"})


def test_an_index_that_does_not_answer_is_asked_once_and_named_in_one_line(scratch):
    nowhere = "http://127.0.0.1:9/simple"
    with pytest.raises(UnreachedError) as raised:
        lowest(INPUTS, PackageIndex(default=nowhere), scratch, {})
    assert str(raised.value).startswith(f"vllm-1.0-cpu-x86_64, Python {HERE}: Failed to fetch: ")
    assert f"{nowhere}/engine/" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def vendor(tmp_path):
    """Wheels of the right names, as the vendor's index has them, and the stub beside."""
    here, stub = tmp_path / "vendor", tmp_path / "stub"
    for path in (here, stub):
        path.mkdir()
    (stub / "tensorrt_llm-1.2.1.tar.gz").write_bytes(b"")
    tags = f"cp{HERE.replace('.', '')}-cp{HERE.replace('.', '')}-linux_x86_64"
    wheel(here, "tensorrt_llm", "1.2.1", tags=tags, needs=["nvidia-cuda-runtime"], files=ENGINE)
    wheel(here, "nvidia_cuda_runtime", "13.0.96", files=HEADER)
    return here


def vendors_lock(vendor, locks, monkeypatch):
    """The tool's exit status; it writes its lock into `locks`."""
    monkeypatch.setattr(lock, "LOCKS", locks)
    with (
        serve(Site(folder=vendor.parent / "stub")) as public,
        serve(Site(folder=vendor, plain=True)) as own,
    ):
        words = ["--python", HERE, "--glibc", "2.28", "--scratch", str(vendor.parent / "e/scratch")]
        places = ["--default-index", public.url, "--index", own.url]
        return lock.main([*VENDORS, *words, *places])


def test_an_engine_of_a_vendors_index_is_locked_from_it_and_proven(
    vendor, tmp_path, monkeypatch, capsys
):
    assert vendors_lock(vendor, tmp_path, monkeypatch) == 0, capsys.readouterr().err
    text = (tmp_path / "tensorrt-llm-1.2.1-cu130-x86_64.txt").read_text()
    assert "tensorrt-llm==1.2.1 \\\n    --hash=sha256:" in text
    assert "://" not in text
    (data,) = yaml.safe_load((tmp_path / "tensorrt-llm-1.2.1-cu130-x86_64.yaml").read_text())
    faults: list[str] = []
    row = read_row(LockRow, data, "row", faults)
    assert faults == []
    assert list(row.faults()) == []
    assert (row.index, row.unpinned, row.packages) == ("vendor", None, 2)
    assert (row.proofs[0].flags, set(row.proofs[0].answers.values())) == (2, {1})


def test_what_the_page_says_to_write_makes_a_plan_that_can_be_applied(
    vendor, tmp_path, monkeypatch
):
    asked = Want.from_data({"model": "auto", "engine": "tensorrt-llm", "release": "1.2.1"})
    host = Host.from_document(golden.document("1x3090"))
    before = decide(host, asked, load_matrix())
    assert "row tensorrt-llm-1.2.1-cu130-x86_64" in before.not_applicable
    assert "python -m tools.lock tensorrt-llm 1.2.1 --index URL" in before.not_applicable
    assert "python_extra_indexes" in before.not_applicable

    copy = tmp_path / "matrix"
    shutil.copytree(MATRIX, copy)
    assert vendors_lock(vendor, copy / "locks", monkeypatch) == 0
    path = copy / "engines/tensorrt-llm.yaml"
    rows = yaml.safe_load(path.read_text())
    row = next(each for each in rows if each["release"] == "1.2.1")
    row["glibc"] = "2.28"
    del row["unknown"], row["build_tags"][0]["not_applicable"]
    row["build_tags"][0]["applicable"] = True
    page = (MATRIX.parent.parent / "docs/environments.md").read_text()
    row |= yaml.safe_load(re.search(r"`(environment: \{imports: \[torch, tensorrt.+?\})`", page)[1])
    path.write_text(json.dumps(rows))
    after = decide(host, asked, load_matrix(directory=copy))
    assert after.engine == "tensorrt-llm"
    # No checkpoint of this model was pinned, which is no matter of the engine's.
    assert after.not_applicable.startswith(f"checkpoint {after.checkpoint} is not pinned")


def test_a_wheel_without_the_engine_in_it_is_locked_by_nobody(
    vendor, tmp_path, monkeypatch, capsys
):
    name = next(vendor.glob("tensorrt_llm-*")).name
    tags = name.removeprefix("tensorrt_llm-1.2.1-").removesuffix(".whl")
    wheel(vendor, "tensorrt_llm", "1.2.1", tags=tags, needs=["nvidia-cuda-runtime"])
    assert vendors_lock(vendor, tmp_path, monkeypatch) == 1
    said = capsys.readouterr().err
    assert "No module named 'tensorrt_llm.commands'" in said
    assert f"tensorrt-llm-1.2.1-cu130-x86_64, Python {HERE}: its own code, asked" in said
    assert not list(tmp_path.glob("tensorrt-llm-*"))


def test_a_build_without_cuda_is_locked_by_nobody(vendor, tmp_path, monkeypatch, capsys):
    wheel(vendor, "nvidia_cuda_runtime", "13.0.96")
    assert vendors_lock(vendor, tmp_path, monkeypatch) == 1
    assert "no cuda.h in what was installed" in capsys.readouterr().err


def test_the_stub_of_a_vendors_engine_is_refused_where_its_index_has_no_wheel(
    vendor, tmp_path, monkeypatch, capsys
):
    next(vendor.glob("tensorrt_llm-*")).unlink()
    assert vendors_lock(vendor, tmp_path, monkeypatch) == 1
    said = capsys.readouterr().err
    assert "tensorrt-llm==1.2.1" in said
    assert len(said.splitlines()) == 1
