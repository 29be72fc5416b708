#!/usr/bin/env bash
# Whether a Rust compiler has the target wasm32-unknown-unknown.
for rustc in rustc /usr/bin/rustc; do
    sysroot=$("$rustc" --print sysroot 2>/dev/null) || continue
    [ -d "$sysroot/lib/rustlib/wasm32-unknown-unknown" ] && exit 0
done
exit 1
