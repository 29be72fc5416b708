#!/usr/bin/env bash
# Makes sure that guests can be compiled: Rust with a wasm32 target, and AssemblyScript in AS.
set -euo pipefail
as=$1
here=$(cd "$(dirname "$0")" && pwd)

if ! bash "$here/rust_ready.sh"; then
    rustup target add wasm32-unknown-unknown
    bash "$here/rust_ready.sh" || { echo "Rust lacks the target wasm32-unknown-unknown" >&2; exit 1; }
fi
npm ci --prefix "$as" --silent --no-audit --no-fund
