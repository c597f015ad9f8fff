#!/usr/bin/env bash
# Installs the engines that compare.py measures, each in a virtual environment of its own:
#
#   bash lab/peers/setup.sh                     all of them
#   bash lab/peers/setup.sh llama.cpp vllm      some of them
#
# Needs python3 with venv and, for llama.cpp, a C++ compiler: it is built here, for this processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=lab/peers
home=${PEERS_HOME:-target/peers}
mkdir -p "$home"

make_venv() {
    [ -x "$home/$1/bin/python" ] || python3 -m venv "$home/$1"
    "$home/$1/bin/pip" install --quiet --upgrade 'pip>=26'
}

install_llama.cpp() {
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" \
        "$home/$1/bin/pip" install --no-binary llama-cpp-python -r "$here/requirements/$1.txt"
}

install_transformers() {
    "$home/$1/bin/pip" install -r "$here/requirements/$1.txt"
}

# The package asks for torch "2.13.0+cpu", which PyPI does not have. PyPI's torch 2.13.0 computes the same on a
# processor: torch comes first, then what else the package needs, and at the end the package alone.
install_vllm() {
    local package wheels=$home/$1/wheels
    "$home/$1/bin/pip" install -r "$here/requirements/$1.txt"
    package=$(sed -n 's/^# package: //p' "$here/requirements/$1.txt")
    "$home/$1/bin/pip" download --no-deps --dest "$wheels" "$package"
    "$home/$1/bin/python" - "$wheels"/*.whl <<'PYTHON' > "$wheels/needs.txt"
import sys, zipfile
from email import message_from_bytes
wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
for need in message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in need and not need.startswith("torch"):
        print(need)
PYTHON
    "$home/$1/bin/pip" install -r "$wheels/needs.txt"
    "$home/$1/bin/pip" install --no-deps "$wheels"/*.whl
}

failed=()
[ $# -gt 0 ] || set -- llama.cpp transformers vllm
for one in "$@"; do
    [ -f "$here/requirements/$one.txt" ] || { echo "setup.sh: no engine is called $one" >&2; exit 2; }
done
for one in "$@"; do
    echo "== $one"
    make_venv "$one"
    # In a shell of its own: there, set -e works, which it would not do inside an `if`.
    bash -euo pipefail -c "$(declare -f "install_$one"); here=$here home=$home; install_$one $one" || failed+=("$one")
done
[ ${#failed[@]} -eq 0 ] || { echo "setup.sh: not installed: ${failed[*]}" >&2; exit 1; }
