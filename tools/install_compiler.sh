#!/usr/bin/env bash
# Makes sure that there are compilers: of C for the worker's host calls, of C++ for the model's
# kernels. Without the latter the model runs on torch.
set -euo pipefail

c_ready() { command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null; }
cxx_ready() { command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null; }

if ! { c_ready && cxx_ready; } && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "   no C or C++ compiler here: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc g++ libc6-dev ||
        true
fi
c_ready || { echo "Symphony needs a C compiler (Debian: gcc libc6-dev)" >&2; exit 1; }
cxx_ready || echo "   no C++ compiler: the model will run on torch, which is slower" >&2
