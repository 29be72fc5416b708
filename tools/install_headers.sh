#!/usr/bin/env bash
# Makes sure that PYTHON's headers are there. pip needs them to compile the worker's host calls, and
# `make compiled` to compile the kernel's modules.
set -euo pipefail
python=$1

headers_ready() {
    "$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}

headers_ready && exit
package=$("$python" -c 'import sys; print("libpython%d.%d-dev" % sys.version_info[:2])')
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "   no headers of Python here: installing Debian's $package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" || true
fi
headers_ready || { echo "Symphony needs the headers of $python (Debian: $package)" >&2; exit 1; }
