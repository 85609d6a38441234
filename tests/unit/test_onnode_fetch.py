"""Downloads from real local servers that break, lie and redirect: right bytes or a sentence."""

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
from tests.unit.onnode_rig import Exchange, program_environment, run, site
from tests.unit.onnode_sources import (
    CONTENT,
    SHA256,
    no_ranges,
    spec,
    url,
    whole,
)


def test_fetches_verifies_and_stamps(store: Path):
    with site(whole) as server:
        answer, _ = run("fetch", spec(store, url(server)))
    assert answer["files"] == {f"{store}/m.gguf": "fetched"}
    assert answer["bytes_received"] == len(CONTENT)
    path = store / "m.gguf"
    assert path.read_bytes() == CONTENT
    entry = json.loads((store / "gpuwright.json").read_text())["files"]["m.gguf"]
    found = path.stat()
    assert entry == {
        "bytes": len(CONTENT),
        "sha256": SHA256,
        "mtime_ns": found.st_mtime_ns,
        "inode": found.st_ino,
    }
    assert sorted(one.name for one in store.iterdir()) == ["gpuwright.json", "m.gguf"]
    assert found.st_mode & 0o777 == 0o644


def test_a_second_run_asks_nobody_and_writes_nothing(store: Path):
    with site(whole) as server:
        run("fetch", spec(store, url(server)))
        stamp = (store / "gpuwright.json").stat().st_mtime_ns
        server.seen.clear()
        answer, _ = run("fetch", spec(store, url(server)))
    assert answer["files"] == {f"{store}/m.gguf": "kept"}
    assert server.seen == []
    assert (store / "gpuwright.json").stat().st_mtime_ns == stamp


def test_resumes_where_an_earlier_run_stopped(store: Path):
    (store / ".partial").mkdir(parents=True)
    (store / ".partial" / SHA256).write_bytes(CONTENT[:1_000_000])
    (store / ".partial" / "stale").write_bytes(b"of another row")
    with site(whole) as server:
        answer, _ = run("fetch", spec(store, url(server)))
        assert server.seen[0][2]["Range"] == "bytes=1000000-"
    assert answer["bytes_received"] == 2_000_000
    assert (store / "m.gguf").read_bytes() == CONTENT
    assert not (store / ".partial").exists()


def test_a_wrong_start_left_by_an_earlier_run_costs_one_more_download(store: Path):
    (store / ".partial").mkdir(parents=True)
    (store / ".partial" / SHA256).write_bytes(b"x" * 1_000_000)
    with site(whole) as server:
        answer, _ = run("fetch", spec(store, url(server)))
        assert [("Range" in headers) for _, _, headers in server.seen] == [True, False]
    assert answer["ok"] is True


@pytest.mark.parametrize("held", [1_000_000, len(CONTENT), len(CONTENT) + 5])
def test_a_server_without_ranges_starts_over(store: Path, held: int):
    (store / ".partial").mkdir(parents=True)
    (store / ".partial" / SHA256).write_bytes((b"x" + CONTENT + b"12345")[:held])
    with site(no_ranges) as server:
        answer, _ = run("fetch", spec(store, url(server)))
    assert answer["ok"] is True
    assert (store / "m.gguf").read_bytes() == CONTENT


def test_a_server_that_refuses_or_misplaces_a_range_is_asked_for_the_whole(store: Path):
    def refusing(exchange: Exchange) -> None:
        if "Range" in exchange.headers:
            exchange.reply(416)
        else:
            exchange.reply(200, CONTENT)

    def misplacing(exchange: Exchange) -> None:
        if "Range" in exchange.headers:
            told = {"Content-Range": f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"}
            exchange.reply(206, CONTENT, told)
        else:
            exchange.reply(200, CONTENT)

    for handler in (refusing, misplacing):
        (store / ".partial").mkdir(parents=True, exist_ok=True)
        (store / ".partial" / SHA256).write_bytes(CONTENT[:1000])
        with site(handler) as server:
            assert run("fetch", spec(store, url(server)))[0]["ok"] is True
        (store / "m.gguf").unlink()


def test_a_connection_that_breaks_is_taken_up_where_it_broke(store: Path):
    def breaking(exchange: Exchange) -> None:
        if len(exchange.site.seen) == 1:
            exchange.break_off(CONTENT, 700_000)
        else:
            exchange.reply_ranged(CONTENT)

    with site(breaking) as server:
        answer, finished = run("fetch", spec(store, url(server)))
        assert server.seen[1][2]["Range"] == "bytes=700000-"
    assert answer["bytes_received"] == len(CONTENT)
    assert "try 1 of 3" in finished.stderr


def test_a_stalled_connection_is_given_up_and_the_next_source_finishes(store: Path):
    def stalling(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Length", str(len(CONTENT)))
        exchange.end_headers()
        exchange.wfile.write(CONTENT[:100_000])
        exchange.wfile.flush()
        time.sleep(0.6)

    with site(stalling) as slow, site(whole) as good:
        sources = (url(slow), url(good))
        answer, finished = run("fetch", spec(store, *sources, timeout_seconds=0.2))
        assert good.seen[0][2]["Range"].startswith("bytes=")
    assert answer["from"][f"{store}/m.gguf"] == f"{good.url}/m.gguf"
    assert "stalled" in finished.stderr


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(store: Path, status: int):
    def recovering(exchange: Exchange) -> None:
        if len(exchange.site.seen) < 3:
            exchange.reply(status)
        else:
            whole(exchange)

    with site(recovering) as server:
        assert run("fetch", spec(store, url(server)))[0]["ok"] is True
        assert len(server.seen) == 3


def test_a_wrong_file_is_refused_and_nothing_of_it_stays(store: Path):
    def lying(exchange: Exchange) -> None:
        exchange.reply(200, b"x" * len(CONTENT))

    with site(lying) as server:
        answer, finished = run("fetch", spec(store, url(server)))
    assert finished.returncode == 1
    assert (
        f"its sha256 is {hashlib.sha256(b'x' * len(CONTENT)).hexdigest()[:16]}" in answer["error"]
    )
    assert list((store / ".partial").iterdir()) == []
    assert not (store / "m.gguf").exists()
    assert not (store / "gpuwright.json").exists()


def test_every_source_is_named_with_its_reason(store: Path):
    def missing(exchange: Exchange) -> None:
        exchange.reply(404)

    def short(exchange: Exchange) -> None:
        exchange.reply(200, CONTENT[:-1])

    with site(missing) as one, site(short) as two:
        sources = (
            url(one),
            url(two),
            {"kind": "local", "path": "/nonexistent/m.gguf"},
            {"kind": "url", "url": "http://127.0.0.1:1/m.gguf"},
        )
        error = run("fetch", spec(store, *sources))[0]["error"]
    assert "answers 404" in error
    assert f"served with {len(CONTENT) - 1} bytes, needed {len(CONTENT)}" in error
    assert "/nonexistent/m.gguf: No such file" in error
    assert "127.0.0.1:1/m.gguf is not reached" in error


def test_never_takes_more_than_the_file_has(store: Path):
    def endless(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.end_headers()
        exchange.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(400):
                exchange.wfile.write(b"y" * 100_000)

    with site(endless) as server:
        answer, _ = run("fetch", spec(store, url(server)))
    assert answer["ok"] is False
    assert list((store / ".partial").iterdir()) == []


def test_a_local_file_is_copied_and_checked(store: Path, tmp_path: Path):
    here = tmp_path / "here.gguf"
    here.write_bytes(CONTENT)
    source = {"kind": "local", "path": str(here)}
    assert run("fetch", spec(store, source))[0]["files"] == {f"{store}/m.gguf": "fetched"}
    assert (store / "m.gguf").read_bytes() == CONTENT
    here.write_bytes(b"z" * len(CONTENT))
    (store / "m.gguf").unlink()
    assert "does not hold the file" in run("fetch", spec(store, source))[0]["error"]


def test_too_little_room_is_said_before_the_first_byte(store: Path):
    with site(whole) as server:
        answer, _ = run("fetch", spec(store, url(server), reserve_bytes=1 << 60))
        assert server.seen == []
    assert "needs 1073741824.0 GiB on the filesystem /" in answer["error"]
    assert "GiB free" in answer["error"]
    assert not store.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../m"},
        {"path": "/etc/m"},
        {"path": ".partial/x"},
        {"path": "gpuwright.json"},
        {"sha256": None},
        {"bytes": None},
    ],
)
def test_a_row_that_leads_out_or_vouches_for_nothing_is_refused(
    store: Path, change: dict[str, Any]
):
    wanted = spec(store)
    wanted["stores"][0]["files"][0].update(change)
    answer, _ = run("fetch", wanted)
    assert answer["ok"] is False
    assert not store.exists()


def test_waits_for_another_run_and_then_finds_its_work_done(store: Path):
    def slow(exchange: Exchange) -> None:
        time.sleep(0.7)
        whole(exchange)

    with site(slow) as server:
        line = carry.command("fetch", spec(store, url(server)))
        both = [
            subprocess.Popen(
                ["sh", "-c", line],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                env=program_environment(),
            )
            for _ in range(2)
        ]
        outputs = [process.communicate(timeout=20) for process in both]
        assert len(server.seen) == 1
    words = sorted(json.loads(out)["files"][f"{store}/m.gguf"] for out, _ in outputs)
    assert words == ["fetched", "kept"]
    assert any("another run is fetching" in err for _, err in outputs)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_only_what_the_next_one_resumes(store: Path, sent: signal.Signals):
    def trickling(exchange: Exchange) -> None:
        if "Range" in exchange.headers:
            exchange.reply_ranged(CONTENT)
            return
        exchange.send_response(200)
        exchange.send_header("Content-Length", str(len(CONTENT)))
        exchange.end_headers()
        exchange.wfile.write(CONTENT[:2_000_000])
        exchange.wfile.flush()
        time.sleep(1.5)

    with site(trickling) as server:
        process = subprocess.Popen(
            [
                "sh",
                "-c",
                "exec " + carry.command("fetch", spec(store, url(server))).split("; ")[1][5:],
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=program_environment(),
        )
        partial = store / ".partial" / SHA256
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if partial.exists() and partial.stat().st_size >= 1_000_000:
                break
            time.sleep(0.01)
        os.kill(process.pid, sent)
        process.communicate(timeout=10)
        assert not (store / "m.gguf").exists()
        answer, _ = run("fetch", spec(store, url(server)))
        assert server.seen[-1][2]["Range"].startswith("bytes=")
    assert answer["ok"] is True
    assert answer["bytes_received"] < len(CONTENT)


def test_goes_on_when_nobody_listens_any_more(store: Path):
    def slow(exchange: Exchange) -> None:
        time.sleep(0.5)
        whole(exchange)

    with site(slow) as server:
        process = subprocess.Popen(
            ["sh", "-c", carry.command("fetch", spec(store, url(server)))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=program_environment(),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.wait(timeout=20)
    assert (store / "m.gguf").read_bytes() == CONTENT
    assert (store / "gpuwright.json").exists()
