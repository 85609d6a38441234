"""Files that an engine wants at its start, written by the service itself into its own directory
below /run: root's environment file stays the only place on a disk that holds a key."""

from __future__ import annotations

import json
from typing import Any

from gpuwright.plan import Plan
from gpuwright.versions import at_least

# In the shell a key is a variable and printf one of its own words, so that it is nobody's argument.
_ARGUMENTS = (
    "set -eu; umask 077; key=${SGLANG_API_KEY-}; case $key in "
    """'') echo "SGLANG_API_KEY is empty: everybody would be answered" >&2; exit 1;; """
    """-*) echo "SGLANG_API_KEY begins with -, as options do" >&2; exit 1;; """
    "esac; "
    """quoted=$(printf %s "$key" | sed "s/'/''/g"); """
    """printf "api-key: '%s'\\n" "$quoted" >"$RUNTIME_DIRECTORY/arguments.yaml"; """
    """printf '%s\\n' "$1" >"$RUNTIME_DIRECTORY/logging.json\""""
)
_KEYS = (
    "set -eu; umask 077; keys=${LLAMA_API_KEY-}; "
    """test -n "$keys" || { echo "LLAMA_API_KEY is empty: everybody would be answered" >&2; """
    "exit 1; }; "
    """printf '%s\\n' "$keys" "$keys" | tr , '\\n' >"$RUNTIME_DIRECTORY/keys\""""
)
_CONFIGURATION = (
    """set -eu; umask 077; printf '%s\\n' "$1" >"$RUNTIME_DIRECTORY/config.yaml"; """
    'test $# -eq 1 || { mkdir -p "$RUNTIME_DIRECTORY/model"; '
    'ln -sfn "$2" "$RUNTIME_DIRECTORY/model/$3"; }'
)


def sglang_files(release: str) -> tuple[str, ...]:
    """Writes `arguments.yaml`, which holds the key, and `logging.json`, which keeps it out of the
    journal. SGLang takes its key as an argument or from `--config`, and logs all that it was told,
    the key with it: the modules that do so say warnings alone.
    """
    loggers = {name: {"level": "WARNING"} for name in (*told_by(release), "httpx", "httpcore")}
    return ("/bin/sh", "-c", _ARGUMENTS, "sh", json.dumps(_LOGGING | {"loggers": loggers}))


def told_by(release: str) -> tuple[str, ...]:
    """The modules of an SGLang release that log its arguments as a whole."""
    start = "sglang.srt.entrypoints.engine"
    # The scheduler did where a request changes one of them (/set_internal_state).
    return (start,) if at_least(release, "0.5.23") else (start, "sglang.srt.managers.scheduler")


_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "[%(asctime)s] %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"level": "INFO", "handlers": ["out"]},
}


def ik_llama_cpp_files() -> tuple[str, ...]:
    """Writes `keys`, one a line: with commas between they are LLAMA_API_KEY, as for llama.cpp. All
    stand there twice: of one alone the server logs how it ends, of several how many there are."""
    return ("/bin/sh", "-c", _KEYS)


def tensorrt_llm_files(
    settings: dict[str, Any], linked: tuple[str, str] | tuple[()] = ()
) -> tuple[str, ...]:
    """Writes `config.yaml`; JSON is YAML, too. `linked` is a model's directory and the name that a
    link to it gets below `model/`."""
    words = json.dumps(settings, sort_keys=True), *linked
    return ("/bin/sh", "-c", _CONFIGURATION, "sh", *words)


def runtime_directory(plan: Plan) -> str:
    """The name below /run of the directory that is the service's alone while it runs."""
    return f"gpuwright-{plan.service}"
