#!/usr/bin/env bash
# Makes sure that the system has what pip, npm and rustup do not bring. With `server`: compilers of
# C (the worker's host calls) and C++ (the model's kernels; without it torch computes), PYTHON's
# headers and its venv module. With `guests`: Rust for wasm32, Node and npm. Root gets Debian's
# packages, any other user the command for all that are missing.
#
#   bash tools/install_system.sh PYTHON server|guests...
set -euo pipefail
python=$1
shift
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=none
case $version in
    3.11|3.12|3.13) ;;
    *) echo "Symphony needs Python 3.11 to 3.13, ${python:-python3} is $version. Set PYTHON=..." >&2; exit 1 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)

c_ready() { command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null; }
cxx_ready() { command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null; }
headers_ready() {
    "$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}
venv_ready() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
node_ready() {
    command -v npm >/dev/null &&
        node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null
}
# A user with rustup needs no package: install_toolchains.sh adds the target.
rust_ready() { command -v rustup >/dev/null && [ "$(id -u)" != 0 ] || bash "$here/rust_ready.sh"; }

# The packages that are missing; those without which nothing works if `needed` is given.
missing() {
    for part in "${parts[@]}"; do
        if [ "$part" = server ]; then
            c_ready || echo gcc libc6-dev
            [ -n "${1:-}" ] || cxx_ready || echo g++
            headers_ready || echo "libpython$version-dev"
            venv_ready || echo "python$version-venv"
        else
            rust_ready || echo rustc cargo libstd-rust-dev-wasm32 lld
            node_ready || echo nodejs npm
        fi
    done
}

parts=("$@")
packages=$(missing | xargs)
[ -n "$packages" ] || exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "   missing here, installed from Debian: $packages"
    apt-get update -qq
    # shellcheck disable=SC2086 # words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages || true
fi
needed=$(missing needed | xargs)
if [ -n "$needed" ]; then
    echo "Symphony needs, by the names of Debian's packages: $needed" >&2
    echo "Have them installed (as root: apt-get install $packages), then run make again." >&2
    [[ $needed != *nodejs* ]] || echo "Node has to be 18 or newer, as Debian 12 has it." >&2
    exit 1
fi
cxx_ready || echo "   no C++ compiler: the model will run on torch, which is slower" >&2
