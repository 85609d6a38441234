"""Let nobody call a service ready before its model has answered, on the GPUs it was planned for."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from gpuwright.onnode.answering import completion, exchange, health, keyless, loopback
from gpuwright.onnode.children import spawn, start, value
from gpuwright.onnode.envfile import api_key, secrets
from gpuwright.onnode.fallback import forget, put_back
from gpuwright.onnode.listeners import ports, stranger
from gpuwright.onnode.machine import CONTAINERS, virtualization
from gpuwright.onnode.nvml import ask
from gpuwright.onnode.outcome import NodeError, Progress, cause, clean, say
from gpuwright.onnode.service import ask_systemd, pids, properties, state
from gpuwright.onnode.tree import Tree

_JOURNAL_LINES = 30
_MOST_RESTARTS = 3
_PATIENCE_SECONDS = 10.0
"""How long a word that cannot get better by itself must stand before it is believed."""
_COMPLETION_SECONDS = 120.0
_MOST_TOKENS = 32
_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cc1plus"})
"""What an engine starts that makes kernels as it starts: by the names that the kernel has."""


class Gate:
    """One service that has to prove itself before a deadline."""

    def __init__(self, spec: dict[str, Any], carried: str | None) -> None:
        self.spec = spec
        self.carried = carried
        self.tree = Tree(str(spec.get("root") or "/"))
        self.unit = str(spec["unit"])
        self.bind, self.port = str(spec.get("bind") or "127.0.0.1"), int(spec["port"])
        self.name = str(spec["served_model_name"])
        self.began = time.monotonic()
        self.deadline = self.began + float(spec["deadline_seconds"])
        self.for_compilers = float(spec.get("compiler_seconds") or 0)
        environment = self.tree.text(str(spec["env_file"])) or ""
        self.key, self.secrets = api_key(environment), secrets(environment)
        self.first_restarts: int | None = None
        self.group: str | None = None

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    def fail(self, error: str, hint: str = "") -> NodeError:
        """The sentence, with the unit's last journal lines; keys are replaced in all of it."""
        return NodeError(self.hidden(error), hint, journal=self.journal())

    def hidden(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def journal(self) -> list[str]:
        arguments = ["journalctl", "--no-pager", "-q", "-o", "cat", "-n", str(_JOURNAL_LINES)]
        child = spawn([*arguments, "-u", self.unit], 10)
        text = (child.output() or b"").decode("utf-8", "replace") if child else ""
        return [clean(self.hidden(line), 500) for line in text.splitlines()[-_JOURNAL_LINES:]]

    def unit_state(self) -> dict[str, Any]:
        child = ask_systemd(self.unit)
        shown = properties((child.output() or b"").decode("utf-8", "replace") if child else "")
        self.group = shown.get("ControlGroup") or self.group
        return state(self.unit, shown)

    def put_off(self, seconds: float) -> None:
        """Take the time since the last look for the compilers', if any is at work in the unit.

        What they make is kept: a start that finds it has no more time than any other.
        """
        if not self.for_compilers or not any(
            self.tree.word(f"/proc/{pid}/comm") in _COMPILERS for pid in pids(self.tree, self.group)
        ):
            return
        seconds = min(seconds, self.for_compilers)
        self.for_compilers -= seconds
        self.deadline += seconds

    def check_unit(self) -> str | None:
        """A complaint about the unit. NodeError: it has failed, or starts over and over."""
        now = self.unit_state()
        restarts = now["restarts"] or 0
        if self.first_restarts is None:
            self.first_restarts = restarts
        ending = f"result {now['result']}"
        if now["load"] == "not-found":
            raise self.fail(f"{self.unit} is not known to systemd")
        if now["active"] == "failed":
            raise self.fail(f"{self.unit} failed ({ending}) after {self.spent:.0f} s")
        if restarts - self.first_restarts >= _MOST_RESTARTS:
            tries = restarts - self.first_restarts
            raise self.fail(f"{self.unit} starts over and over: {tries} restarts ({ending})")
        return f"{self.unit} is not running ({ending})" if now["active"] == "inactive" else None

    def heard(self) -> list[dict[str, Any]] | None:
        """Who listens on our port; None if that cannot be told."""
        try:
            return ports(self.tree, self.port)
        except NodeError:
            return None

    def stranger(self) -> str | None:
        """A complaint if a connection would reach somebody else; the key must not be sent then."""
        return stranger(self.heard(), loopback(self.bind), self.port, self.unit)

    def wait_for_model(self) -> None:
        """Return when /health is 200 and /v1/models names the model. NodeError: why it is not.

        A complaint, which waiting does not cure, is believed when one has stood for a while.
        """
        progress, pause = Progress(10.0), 0.1
        looked = self.began
        patience = float(self.spec.get("patience_seconds") or _PATIENCE_SECONDS)
        bad_since: float | None = None
        while True:
            complaint = self.check_unit()
            patient = min(5.0, max(1.0, self.deadline - time.monotonic()))
            heard = self.heard()
            found = health(self.unit, (self.bind, self.port), heard, self.key, patient)
            if found["status"] == 200 and self.name in (found["models"] or []):
                return
            complaint = complaint or self.complaint(found, heard)
            now = time.monotonic()
            self.put_off(now - looked)
            looked, limit = now, self.deadline - self.began
            bad_since = (bad_since or now) if complaint else None
            if complaint and bad_since is not None and now - bad_since >= patience:
                raise self.fail(complaint)
            word = complaint or self.wanting(found)
            if now >= self.deadline:
                raise self.fail(f"{self.unit} did not answer within {limit:.0f} s: {word}")
            if progress.due():
                say(f"gate {self.unit}: {word}, {self.spent:.0f} of {limit:.0f} s")
            time.sleep(min(pause, max(0.0, self.deadline - time.monotonic())))
            pause = min(1.0, pause * 1.5)

    def complaint(self, found: dict[str, Any], heard: list[dict[str, Any]] | None) -> str | None:
        """What is wrong with who listens, or with a server that says it is healthy."""
        other = stranger(heard, loopback(self.bind), self.port, self.unit)
        if other is not None or found["status"] != 200:
            return other
        if found["models_status"] in (401, 403):
            return f"{self.unit} does not accept the key in {self.spec['env_file']}"
        if found["models_status"] == 200:
            named = ", ".join(found["models"] or []) or "no model"
            return f"{self.unit} serves {named}, needed {self.name}"
        return None

    def wanting(self, found: dict[str, Any]) -> str:
        """What is still awaited, for people."""
        if found["error"]:
            return str(found["error"])
        if found["status"] != 200:
            return f"/health answers {found['status']}"
        return f"/v1/models answers {found['models_status']}"

    def complete(self) -> dict[str, Any]:
        """One real chat completion: its text and speed. NodeError: the model says nothing."""
        began = time.monotonic()
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": str(self.spec.get("prompt") or "Say hello.")}],
            "max_tokens": _MOST_TOKENS,
            "temperature": 0,
        }
        other = self.stranger()
        if other is not None:
            raise self.fail(other)
        seconds = max(_COMPLETION_SECONDS, self.deadline - began) + self.for_compilers
        path = "/v1/chat/completions"
        try:
            status, data = exchange(
                loopback(self.bind), self.port, path, self.key, seconds, json.dumps(body).encode()
            )
        except (OSError, ValueError) as problem:
            reason = str(problem) or type(problem).__name__
            raise self.fail(f"{self.unit} does not complete a prompt: {reason}") from None
        text = data.decode("utf-8", "replace")
        if status != 200:
            raise self.fail(f"{self.unit} answers a prompt with {status}: {clean(text, 300)}")
        spent = time.monotonic() - began
        said, tokens = completion(text)
        if not said:
            raise self.fail(f"{self.unit} answers a prompt with nothing: {clean(text, 300)}")
        rate = round(tokens / spent, 1) if tokens and spent > 0 else None
        return {"text": clean(said, 300), "tokens": tokens, "tokens_per_second": rate}

    def check_closed(self) -> None:
        """NodeError: whoever has no key is answered, too."""
        if not self.key:
            return
        try:
            status = keyless(loopback(self.bind), self.port, 10.0)
        except (OSError, ValueError) as problem:
            raise self.fail(f"{self.unit} stopped to answer: {cause(problem)}") from None
        if status == 200:
            raise self.fail(
                f"{self.unit} answers without a key, too",
                f"see what takes {self.spec['env_file']} away from it: systemctl cat {self.unit}",
            )

    def check_gpus(self) -> list[str]:
        """The planned UUIDs, each with a process of ours on it. NodeError: a card without one.

        NVML names processes as the host of a container counts them, so that inside one an open
        device node of a card has to do.
        """
        wanted = [str(uuid) for uuid in self.spec.get("gpu_uuids") or []]
        if not wanted:
            return []
        ours = set(pids(self.tree, self.group))
        answer = value(start(lambda: ask(self.carried), _PATIENCE_SECONDS))
        if not isinstance(answer, dict) or answer.get("error_code") is not None:
            reason = answer.get("error") if isinstance(answer, dict) else "it does not answer"
            raise self.fail(f"the NVIDIA driver cannot say what runs on the GPUs: {reason}")
        used = {
            device["uuid"]
            for device in answer["devices"]
            if any(process["pid"] in ours for process in device["processes"] or [])
        }
        idle = [uuid for uuid in wanted if uuid not in used]
        if idle and virtualization(self.tree) in CONTAINERS and self.opened_a_card(ours):
            return wanted
        if idle:
            raise self.fail(
                f"{self.unit} answers, but has no process on {', '.join(idle)}: "
                "it runs on the CPU or on another GPU",
                "see the unit's journal for CUDA errors, and /dev/nvidia-uvm",
            )
        return wanted

    def opened_a_card(self, ours: set[int]) -> bool:
        return any(
            re.match(r"/dev/(nvidia\d+|dxg)\Z", self.tree.link(f"/proc/{pid}/fd/{number}") or "")
            for pid in ours
            for number in self.tree.names(f"/proc/{pid}/fd")
        )


def main(spec: dict[str, Any], carried: str | None) -> dict[str, Any]:
    """Wait until the service has proven itself.

    spec: unit, bind, port, served_model_name, env_file, deadline_seconds, compiler_seconds (how far
    compilers at work may put it off), prompt, gpu_uuids, patience_seconds, kept (paths of the unit
    and of its record, where what served before may lie beside). Answers with `seconds`,
    `completion` {text, tokens, tokens_per_second}, `gpus`, `restarts` while it was waited for. On
    failure `journal` has the unit's last lines, and what served before serves again.
    """
    os.environ.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    gate = Gate(spec, carried)
    kept = [gate.tree.at(str(path)) for path in spec.get("kept") or []]
    try:
        found = _prove(gate)
    except NodeError as failure:
        record = put_back(kept, gate.unit)
        if record is not None:
            raise _fallen_back(spec, record, failure) from None
        raise
    forget(kept)
    return found


def _fallen_back(spec: dict[str, Any], record: dict[str, Any], failure: NodeError) -> NodeError:
    """`failure`, with what became of the plan before."""
    told = ("bind", "port", "served_model_name")
    before: dict[str, Any] = {key: record[key] for key in told if key in record}
    name = f"{record.get('served_model_name')} on {record.get('engine')} {record.get('release')}"
    say(f"gate {spec['unit']}: {failure.error}; starting again what served before: {name}")
    try:
        Gate({**spec, **before}, None).wait_for_model()
        word = f"what served before serves again: {clean(name, 300)}"
    except (NodeError, ValueError, TypeError) as second:
        word = f"what served before, {clean(name, 300)}, was put back and does not answer: {second}"
    return NodeError(f"{failure.error} ({word})", failure.hint, **failure.more)


def _prove(gate: Gate) -> dict[str, Any]:
    gate.wait_for_model()
    said = gate.complete()
    gate.check_closed()
    gpus = gate.check_gpus()
    now = gate.unit_state()
    if now["active"] not in ("active", None):
        raise gate.fail(f"{gate.unit} answered once and is {now['active']} then")
    return {
        "ok": True,
        "seconds": round(gate.spent, 1),
        "completion": said,
        "gpus": gpus,
        "restarts": (now["restarts"] or 0) - (gate.first_restarts or 0),
    }
