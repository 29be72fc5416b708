#!/usr/bin/env bash
# Makes the virtual environment VENV with PYTHON and installs Symphony into it, pinned.
set -euo pipefail
python=$1 venv=$2

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
    3.11|3.12|3.13) ;;
    *) echo "Symphony needs Python 3.11 to 3.13; $python is $version. Set PYTHON=..." >&2; exit 1 ;;
esac

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian ships the venv module apart.
    echo "   $python has no venv module: installing python$version-venv"
    if [ "$(id -u)" != 0 ]; then echo "run as root, or: apt-get install python$version-venv" >&2; exit 1; fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "python$version-venv"
fi

# The compiler that Python was built with may be missing here.
built_with=$("$python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')
if [ -z "${CC:-}" ] && ! command -v "$built_with" >/dev/null; then
    CC=$(command -v cc || command -v gcc)
    export CC
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[test]'
