"""Whether a service answers over HTTP, asked so that its key reaches nobody else."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

from gpuwright.onnode.listeners import place as listening_place
from gpuwright.onnode.listeners import reached, stranger
from gpuwright.onnode.outcome import cause, clean

_MOST_BYTES = 1 << 20

NO_HEALTH: dict[str, Any] = {
    "status": None,
    "models": None,
    "models_status": None,
    "keyless_status": None,
    "error": None,
}


def loopback(bind: str) -> str:
    """The address to ask on: a service on every address is asked over loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104


def exchange(
    host: str,
    port: int,
    path: str,
    key: str | None,
    seconds: float,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Status and body of one HTTP GET, or POST of JSON, all within `seconds`.

    OSError, ValueError: no answer. Raw sockets, since importing http.client takes as long as half
    of a whole look at a node.
    """
    deadline = time.monotonic() + seconds
    head = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.0",
        f"Host: {listening_place(host, port)}",
        "Accept: application/json",
        "Connection: close",
    ]
    if key is not None and re.match(r"[\x21-\x7e]+\Z", key):
        head.append(f"Authorization: Bearer {key}")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("ascii") + (body or b""))
        data = b""
        while len(data) < _MOST_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(1 << 16)
            data += chunk
            if not chunk or _complete(data):
                break
    match = re.match(rb"HTTP/1\.[01] (\d{3})\b", data)
    if not match:
        raise ValueError("the answer is not HTTP")
    return int(match.group(1)), data.partition(b"\r\n\r\n")[2]


def _complete(data: bytes) -> bool:
    head, blank, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: *(\d+)", head, re.IGNORECASE)
    return bool(blank and length and len(body) >= int(length.group(1)))


def models(body: bytes) -> list[str] | None:
    """The ids that /v1/models names; None if that is not such a list."""
    try:
        rows = json.loads(body.decode("utf-8", "replace"))["data"]
        return [clean(row["id"], 300) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def keyless(address: str, port: int, seconds: float) -> int:
    """The status that whoever has no key gets; 200 where everybody is answered."""
    status, _ = exchange(address, port, "/v1/models", None, seconds)
    if status != 200:
        return status
    # ik_llama.cpp names its model to everybody, and answers none of them.
    path = "/v1/chat/completions"
    status, _ = exchange(address, port, path, None, seconds, b"{}")
    return status if status in (401, 403) else 200


def health(
    unit: str,
    place: tuple[str, int],
    heard: list[dict[str, Any]] | None,
    key: str | None,
    seconds: float = 2.0,
) -> dict[str, Any]:
    """What /health and /v1/models, asked with the key and without, say at `place` (bind, port).

    `heard` is who listens on the node. Nothing is sent to a listener that is not of `unit`: whoever
    took its port would be given the key. `error` is a sentence where there is no answer.
    """
    found = dict(NO_HEALTH)
    address, port = loopback(place[0]), place[1]
    shown = listening_place(address, port)
    found["error"] = stranger(heard, address, port, unit)
    if found["error"] is None and not reached(heard or [], address, port):
        found["error"] = f"nothing listens on {shown}"
    if found["error"] is not None:
        return found
    try:
        found["status"], _ = exchange(address, port, "/health", None, seconds)
        found["models_status"], body = exchange(address, port, "/v1/models", key, seconds)
        if found["models_status"] == 200:
            found["models"] = models(body)
            found["keyless_status"] = keyless(address, port, seconds)
    except ConnectionRefusedError:
        found["error"] = f"nothing listens on {shown}"
    except socket.timeout:  # noqa: UP041  not the same before Python 3.10
        found["error"] = f"{shown} did not answer within {seconds:g} s"
    except (OSError, ValueError) as problem:
        found["error"] = clean(f"{shown}: {cause(problem)}", 300)
    return found


def completion(text: str) -> tuple[str, int | None]:
    """What the model said, thoughts included, and how many tokens that was."""
    try:
        answer = json.loads(text)
        message = answer["choices"][0]["message"]
        said = message.get("content") or message.get("reasoning_content") or ""
        tokens = (answer.get("usage") or {}).get("completion_tokens")
        return str(said).strip(), tokens if isinstance(tokens, int) else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return "", None
