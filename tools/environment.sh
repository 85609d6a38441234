#!/bin/sh
# Make the Python environment in the folder $1 with the extra $2 (default dev); quiet when it stands.
set -eu
cd "$(dirname "$0")/.."
venv=$1
extra=${2:-dev}
python=${PYTHON:-python3}

say() { printf 'environment: %s\n' "$*" >&2; }

command -v "$python" >/dev/null || { say "$python not found; needed Python >= 3.11"; exit 1; }
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"environment: Python {sys.version.split()[0]} found, needed >= 3.11 (PYTHON=... names another)")
PY

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing python3-venv"
        apt-get -qq update >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
    else
        say "the venv module is missing; install python3-venv and run again"
        exit 1
    fi
fi

stamp="$venv/installed"
[ "$extra" = dev ] || stamp="$venv/installed-$extra"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ]; then
    exit 0
fi
if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv"
    "$python" -m venv "$venv"
fi
say "installing gpuwright with its $extra tools into $venv"
log=$(mktemp)
if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check -e ".[$extra]" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
touch "$stamp"
