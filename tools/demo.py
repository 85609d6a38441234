"""`make demo`: a bare node becomes a model server, and a second run changes nothing.

KEEP=1 leaves the node and prints how to reach it. Where no node can be booted, the same deploy is
rehearsed on rigs that do not exist, and it says so.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from gpuwright.layout import Layout
from tests.lab.lab import Lab
from tests.lab.node import Node

ROOT = Path(__file__).resolve().parents[1]
LAB = "demo"
NODE = "box"
QUESTION = "What is the capital of France? Answer in one sentence."
PYINFRA = [sys.executable, "-m", "pyinfra"]


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def deploy(inventory: str, *arguments: str) -> float:
    """Run the serve deploy, shown as it runs; its wall time in seconds. SystemExit on failure."""
    words = ["pyinfra", "-y", inventory, "deploys/serve.py", *arguments]
    print(f"$ {shlex.join(words)}", flush=True)
    began = time.monotonic()
    status = subprocess.run([*PYINFRA, *words[1:]], cwd=ROOT, check=False).returncode
    if status:
        raise SystemExit(status)
    return time.monotonic() - began


def ask(node: Node) -> str:
    """One chat completion over HTTP, through an ssh tunnel, with the node's API key."""
    layout = Layout()
    record = json.loads(node.run(["cat", layout.plan_path("llm")]).stdout)
    name = record["secret_names"][0]
    key = node.run(["sed", "-n", f"s/^{name}=//p", record["environment_file"]]).stdout.strip()
    port = 18080
    forward = f"127.0.0.1:{port}:127.0.0.1:{record['port']}"
    command = [*node.ssh_argv, "-N", "-o", "ExitOnForwardFailure=yes", "-L", forward]
    with subprocess.Popen([*command, f"root@{node.address}"]) as tunnel:
        try:
            body = {
                "model": record["served_model_name"],
                "messages": [{"role": "user", "content": QUESTION}],
                "max_tokens": 48,
                "temperature": 0,
            }
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                data=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
            # The tunnel is on this machine: a proxy must not see the key.
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            for attempt in range(50):
                try:
                    with direct.open(request, timeout=60) as response:
                        answer = json.load(response)
                    return str(answer["choices"][0]["message"]["content"]).strip()
                except urllib.error.URLError:
                    if attempt == 49 or tunnel.poll() is not None:
                        raise
                    time.sleep(0.1)
        finally:
            tunnel.terminate()
    raise SystemExit("the tunnel closed before the model was asked")


def on_a_node() -> None:
    """The demo proper."""
    keep = os.environ.get("KEEP") == "1"
    say("booting a throwaway node (own systemd, sshd, apt)")
    with Lab(LAB, keep=keep) as lab:
        node = lab.boot(NODE, ccache=True)
        print(f"{node.name} is up at {node.address}")
        say("serving a model on it")
        first = deploy("inventory/demo.py")
        say(f"asking it: {QUESTION}")
        print(f"{ask(node)}\n")
        say("the same deploy again")
        second = deploy("inventory/demo.py")
        say(f"done: first run {first:.0f} s, second run {second:.1f} s with nothing changed")
        if keep:
            options = ["-o", f"UserKnownHostsFile={node.known_hosts}", "-i", str(node.ssh_key)]
            command = [".venv/bin/gpuwright", "connect", *options, f"root@{node.address}"]
            print(f"The node stays. To reach it:\n  {shlex.join(command)}")
            print(f"To take it away:\n  .venv/bin/python -m tests.lab down {LAB}")


def rehearsal(reason: str) -> None:
    """The same deploy, dry, on rigs that do not exist."""
    say(f"no node can be booted here ({reason}): this is a REHEARSAL on invented rigs")
    environment = os.environ | {"PYINFRA_FAKE_DELAY": "0", "PYINFRA_FAKE_DELAY_JITTER": "0"}
    rehearsed = "inventory/rehearsal.py"
    for words in (
        [rehearsed, "deploys/explain.py", "--dry"],
        [rehearsed, "deploys/serve.py", "--dry", "--limit", "@fake/cpu-debian12"],
    ):
        print(f"$ {shlex.join(['pyinfra', *words])}", flush=True)
        done = subprocess.run([*PYINFRA, *words], cwd=ROOT, check=False, env=environment)
        if done.returncode:
            raise SystemExit(done.returncode)
    say("that was a rehearsal: nothing was installed, nothing was served")


def main() -> None:
    available, reason = Lab.available()
    if available:
        on_a_node()
    else:
        rehearsal(reason)


if __name__ == "__main__":
    main()
