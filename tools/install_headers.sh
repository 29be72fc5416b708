#!/usr/bin/env bash
# Makes sure that PYTHON's headers are there, with which the kernel's modules are compiled. Without
# them the kernel runs as it is written.
set -euo pipefail
python=$1

headers_ready() {
    "$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}

if ! headers_ready && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    package=$("$python" -c 'import sys; print("libpython%d.%d-dev" % sys.version_info[:2])')
    echo "   no headers of Python here: installing Debian's $package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" ||
        echo "   they cannot be installed: the kernel will run as it is written" >&2
fi
