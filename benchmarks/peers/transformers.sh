#!/usr/bin/env bash
# Installs transformers with its server into FOLDER/transformers: an environment of its own, 1 GB.
#
#     benchmarks/peers/transformers.sh FOLDER
set -euo pipefail
folder=${1:?usage: transformers.sh FOLDER}/transformers
version=5.23.0
python=${PYTHON:-python3}

[ -x "$folder/venv/bin/python" ] || "$python" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip install torch==2.13.0
pip install "transformers[serving]==$version" accelerate
"$folder/venv/bin/transformers" version
