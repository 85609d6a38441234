"""The lab's hub: the real client library downloads from it, and its faults are real ones."""

import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixtures import BootNode
from tests.lab.hub import Hub
from tests.lab.hub_index import JSON_TYPE

WEIGHTS = bytes(range(256)) * 2000
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
TOKEN = "hf_the_right_one"


@pytest.fixture
def local_hub() -> Iterator[Hub]:
    with Hub() as opened:
        opened.add_repository("acme/tiny", {"config.json": CONFIG, "q/tiny.gguf": WEIGHTS})
        opened.add_repository("acme/gated", {"model.gguf": WEIGHTS}, tokens=(TOKEN,))
        yield opened


def ask_client(hub: Hub, home: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the real huggingface_hub, in a process and a home of its own."""
    # Nothing of the caller's: neither a token nor a proxy.
    env = {"PATH": os.environ["PATH"], "HF_HOME": str(home), "HF_ENDPOINT": hub.url}
    argv = [sys.executable, "-c", f"from huggingface_hub import *\n{program}"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def get(url: str, **headers: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers=headers)
    response = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5)
    assert isinstance(response, http.client.HTTPResponse)
    return response


def body(url: str, **headers: str) -> bytes:
    with get(url, **headers) as response:
        return response.read()


def test_the_real_client_downloads_a_big_and_a_small_file(local_hub: Hub, tmp_path: Path) -> None:
    program = """
for name in ("config.json", "q/tiny.gguf"):
    print(hf_hub_download("acme/tiny", name))
"""
    done = ask_client(local_hub, tmp_path, program)
    assert done.returncode == 0, done.stderr
    config, weights = map(Path, done.stdout.split())
    assert config.read_bytes() == CONFIG
    assert weights.read_bytes() == WEIGHTS
    assert [request.sent for request in local_hub.requests_to("cdn")] == [len(WEIGHTS)]


def test_the_real_client_reads_sizes_and_hashes(local_hub: Hub, tmp_path: Path) -> None:
    program = """
info = model_info("acme/tiny", revision="main", files_metadata=True)
for row in info.siblings:
    print(row.rfilename, row.size, row.lfs.sha256 if row.lfs else None)
print(snapshot_download("acme/tiny", revision=info.sha))
"""
    done = ask_client(local_hub, tmp_path, program)
    assert done.returncode == 0, done.stderr
    config, weights, snapshot = done.stdout.splitlines()
    assert config == f"config.json {len(CONFIG)} None"
    assert weights == f"q/tiny.gguf {len(WEIGHTS)} {hashlib.sha256(WEIGHTS).hexdigest()}"
    assert (Path(snapshot) / "q/tiny.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("token", "said"), [(False, "GatedRepoError 401"), ("hf_a_wrong_one", "GatedRepoError 403")]
)
def test_a_gated_repository_is_refused_without_its_token(
    local_hub: Hub, tmp_path: Path, token: str | bool, said: str
) -> None:
    program = f"""
try:
    hf_hub_download("acme/gated", "model.gguf", token={token!r})
except Exception as error:
    while error.__cause__ and not getattr(error, "response", None):
        error = error.__cause__
    print(type(error).__name__, error.response.status_code)
"""
    assert ask_client(local_hub, tmp_path, program).stdout.strip() == said
    assert local_hub.requests_to("cdn") == []


def test_the_real_client_shows_its_token_to_the_hub_and_not_to_the_cdn(
    local_hub: Hub, tmp_path: Path
) -> None:
    program = f'hf_hub_download("acme/gated", "model.gguf", token="{TOKEN}")'
    assert ask_client(local_hub, tmp_path, program).returncode == 0
    (seen,) = {request.authorization for request in local_hub.requests_to("hub", "*/resolve/*")}
    assert seen == f"Bearer {TOKEN}"
    assert [request.authorization for request in local_hub.requests_to("cdn")] == [None]


def test_a_token_shown_to_the_cdn_is_recorded(local_hub: Hub) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    body(f"{local_hub.cdn_url}/blobs/{digest}/x", Authorization="Bearer leaked")
    assert local_hub.requests_to("cdn")[0].authorization == "Bearer leaked"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ('hf_hub_download("acme/tiny", "none.gguf")', "EntryNotFoundError"),
        ('hf_hub_download("acme/tiny", "config.json", revision="v9")', "RevisionNotFoundError"),
        ('hf_hub_download("acme/none", "config.json")', "RepositoryNotFoundError"),
        ('model_info("acme/none")', "RepositoryNotFoundError"),
    ],
)
def test_the_real_client_tells_apart_what_is_missing(
    local_hub: Hub, tmp_path: Path, program: str, error: str
) -> None:
    done = ask_client(local_hub, tmp_path, program)
    assert done.returncode == 1
    assert error in done.stderr


def test_the_real_client_resumes_a_broken_download(local_hub: Hub, tmp_path: Path) -> None:
    # The client writes pieces of 10 MB: one of them has to arrive whole.
    weights = WEIGHTS * 24
    local_hub.add_repository("acme/big", {"big.gguf": weights})
    local_hub.fail("*big.gguf", on="cdn", drop_after=11_000_000, times=1)
    done = ask_client(local_hub, tmp_path, 'print(hf_hub_download("acme/big", "big.gguf"))')
    assert Path(done.stdout.strip()).read_bytes() == weights
    first, second = local_hub.requests_to("cdn")
    assert (first.range, first.sent) == (None, 11_000_000)
    assert second.status == 206
    assert second.range is not None
    assert second.sent == len(weights) - int(second.range.strip("bytes=-"))


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-", 5, None),
        ("bytes=-7", -7, None),
        ("bytes=9-9999999", 9, None),
    ],
)
def test_a_range_gives_those_bytes(local_hub: Hub, asked: str, start: int, end: int | None) -> None:
    url = local_hub.add_file("dist/a file", WEIGHTS)
    with get(url, Range=asked) as response:
        assert response.status == 206
        first = start % len(WEIGHTS)
        last = (len(WEIGHTS) if end is None else end) - 1
        assert response.headers["Content-Range"] == f"bytes {first}-{last}/{len(WEIGHTS)}"
        assert response.read() == WEIGHTS[start:end]


def test_a_range_past_the_end_or_of_another_file_is_not_satisfied(local_hub: Hub) -> None:
    url = local_hub.add_file("f", WEIGHTS)
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url, Range=f"bytes={len(WEIGHTS)}-")
    with caught.value as error:
        assert error.code == 416
        assert error.headers["Content-Range"] == f"bytes */{len(WEIGHTS)}"
    changed = {"Range": "bytes=5-", "If-Range": '"another"'}
    assert body(url, **changed) == WEIGHTS


def test_faults_are_done_to_the_requests_they_name_and_no_more(local_hub: Hub) -> None:
    url = local_hub.add_file("a.bin", WEIGHTS)
    other = local_hub.add_file("b.bin", WEIGHTS)

    local_hub.fail("*/a.bin", status=500, times=1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url)
    with caught.value as error:
        assert error.code == 500
    assert body(url) == WEIGHTS

    local_hub.fail("*/a.bin", wrong_bytes=True)
    spoilt = body(url)
    assert len(spoilt) == len(WEIGHTS)
    assert [i for i, byte in enumerate(spoilt) if byte != WEIGHTS[i]] == [len(WEIGHTS) // 2]
    assert body(url, Range="bytes=9-99") == WEIGHTS[9:100]
    assert body(other) == WEIGHTS

    local_hub.heal()
    local_hub.fail("*/a.bin", length=10)
    assert body(url) == WEIGHTS[:10]
    local_hub.heal()
    local_hub.fail("*/a.bin", length=len(WEIGHTS) + 3)
    assert body(url) == WEIGHTS + bytes(3)

    local_hub.heal()
    local_hub.fail("*/a.bin", ignore_range=True)
    with get(url, Range="bytes=5-") as response:
        assert response.status == 200
        assert response.read() == WEIGHTS

    local_hub.heal()
    local_hub.fail("*/a.bin", drop_after=1000)
    with pytest.raises(http.client.IncompleteRead) as broken:
        body(url)
    assert broken.value.partial == WEIGHTS[:1000]


def test_a_slow_hub_keeps_to_its_rate(local_hub: Hub) -> None:
    url = local_hub.add_file("slow", bytes(100_000))
    local_hub.fail("*/slow", rate=200_000)
    started = time.monotonic()
    assert len(body(url)) == 100_000
    assert 0.45 < time.monotonic() - started < 2


@pytest.mark.parametrize(("fault", "got"), [({"hang": True}, b""), ({"stall_after": 5}, b"01234")])
def test_a_hanging_hub_sends_nothing_more_and_can_be_closed(
    fault: dict[str, Any], got: bytes
) -> None:
    with Hub() as hub:
        url = hub.add_file("f", b"0123456789")
        hub.fail(**fault)
        host, port = hub.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=0.5) as client:
            client.sendall(f"GET {url.removeprefix(hub.url)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            seen = b""
            with pytest.raises(TimeoutError):
                while piece := client.recv(4096):
                    seen += piece
            assert seen.partition(b"\r\n\r\n")[2] == got
        started = time.monotonic()
    assert time.monotonic() - started < 2


def wheel(folder: Path) -> Path:
    """A wheel of one module that pip installs."""
    path = folder / "lab_probe-1.0-py3-none-any.whl"
    about = "lab_probe-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lab_probe.py", "ANSWER = 42\n")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: lab-probe\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_the_package_index_lists_files_with_hashes_as_json_and_as_html(
    local_hub: Hub, tmp_path: Path
) -> None:
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    (tmp_path / "notes.txt").write_text("no package")
    url = local_hub.serve_packages(tmp_path)
    listing = json.loads(body(f"{url}/", Accept=JSON_TYPE))
    assert listing["projects"] == [{"name": "lab-probe"}]
    page = json.loads(body(f"{url}/lab-probe/", Accept=JSON_TYPE))
    (row,) = page["files"]
    assert row["hashes"] == {"sha256": digest}
    text = body(f"{url}/lab-probe/").decode()
    assert f'href="../../packages/{row["filename"]}#sha256={digest}"' in text


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_real_installers_use_the_package_index(
    local_hub: Hub, tmp_path: Path, tool: str
) -> None:
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    url = local_hub.serve_packages(tmp_path)
    locked = tmp_path / "locked.txt"
    locked.write_text(f"lab-probe==1.0 --hash=sha256:{digest}\n")
    words = ["install", "-q", "--no-deps", "--require-hashes", "--target", str(tmp_path / "site")]
    words += ["--index-url", f"{url}/", "-r", str(locked)]
    # Configuration files and variables of this machine could bring other indexes in.
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    uv = shutil.which("uv", path=beside)
    if importlib.util.find_spec("pip") is None if tool == "pip" else uv is None:
        pytest.skip(f"{tool} is not installed")
    argv = {"pip": [sys.executable, "-m", "pip"], "uv": [str(uv), "pip"]}[tool]
    done = subprocess.run([*argv, *words], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/lab_probe.py").exists()
    assert local_hub.requests_to("hub", "/packages/*.whl")


@pytest.mark.lab
def test_a_node_reaches_hub_and_cdn(hub: Hub, boot_node: BootNode) -> None:
    hub.add_repository("acme/tiny", {"tiny.gguf": WEIGHTS})
    node = boot_node()
    url = f"{hub.url}/acme/tiny/resolve/main/tiny.gguf"
    done = node.run(f"curl -sfL {url} | sha256sum")
    assert done.stdout.split()[0] == hashlib.sha256(WEIGHTS).hexdigest()
