#!/usr/bin/env bash
# Makes sure that guests can be compiled: Rust with a wasm32 target, and AssemblyScript in AS.
set -euo pipefail
as=$1

rust_ready() {
    local sysroot
    for rustc in rustc /usr/bin/rustc; do
        sysroot=$("$rustc" --print sysroot 2>/dev/null) || continue
        [ -d "$sysroot/lib/rustlib/wasm32-unknown-unknown" ] && return 0
    done
    return 1
}

if ! rust_ready; then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "   no Rust for wasm32 here: installing Debian's"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            rustc cargo libstd-rust-dev-wasm32 lld
    elif command -v rustup >/dev/null; then
        rustup target add wasm32-unknown-unknown
    fi
    rust_ready || { echo "install Rust with the target wasm32-unknown-unknown, then again" >&2; exit 1; }
fi

command -v npm >/dev/null || { echo "install Node 20 with npm, then again" >&2; exit 1; }
npm ci --prefix "$as" --silent --no-audit --no-fund
