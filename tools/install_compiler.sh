#!/usr/bin/env bash
# Makes sure that the model's kernels can be compiled. Without a compiler Symphony runs, on torch.
set -euo pipefail

compiler_ready() { command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null; }

if ! compiler_ready && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "   no C++ compiler here: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ libc6-dev
fi
compiler_ready || echo "   no C++ compiler: the model will run on torch, which is slower" >&2
