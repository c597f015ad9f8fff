#!/bin/sh
echo "$@" >> calls
case "$1" in
build)
    if [ -f broken ]; then cat broken >&2; exit 101; fi
    mkdir -p target/wasm/wasm32-unknown-unknown/wasm
    echo mine > target/wasm/wasm32-unknown-unknown/wasm/page_by_page_wasm.wasm
    ;;
test) [ ! -f red ] ;;
run)
    if [ -f failing ]; then cat failing >&2; exit 1; fi
    mkdir -p "$9"
    echo "<figure data-figure=\"$7\"><p class=\"pbp-whose\">yours: $7</p></figure>" > "$9/$7.html"
    echo "$7: the same as the reference, step by step"
    ;;
esac
