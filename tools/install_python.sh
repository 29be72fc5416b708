#!/usr/bin/env bash
# Makes the virtual environment VENV with PYTHON and installs Symphony into it, pinned.
set -euo pipefail
python=$1 venv=$2

# The compiler that Python was built with may be missing here.
built_with=$("$python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')
if [ -z "${CC:-}" ] && ! command -v "$built_with" >/dev/null; then
    CC=$(command -v cc || command -v gcc)
    export CC
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable client --editable '.[test]'
