#!/usr/bin/env bash
# Builds llama.cpp's server, its quantizer and its GGUF converter into FOLDER/llama.cpp, from the source that
# llama-cpp-python carries. Needs cmake and a C++ compiler; 15 minutes of processor time, 2 GB.
#
#     benchmarks/peers/llama_cpp.sh FOLDER
set -euo pipefail
folder=${1:?usage: llama_cpp.sh FOLDER}/llama.cpp
version=0.3.36
python=${PYTHON:-python3}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ ! -d "$folder/source" ]; then
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary llama-cpp-python --dest "$folder" "llama-cpp-python==$version"
    mkdir "$folder/unpacked"
    tar xzf "$folder/llama_cpp_python-$version.tar.gz" -C "$folder/unpacked" --strip-components=1
    mv "$folder/unpacked/vendor/llama.cpp" "$folder/source"
    rm -r "$folder/unpacked"
fi

cmake -S "$folder/source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF > "$folder/cmake.log"
cmake --build "$folder/build" --target llama-server llama-quantize --parallel "$(nproc)" > "$folder/build.log"

# The converter runs in an environment of its own: it reads checkpoints with torch.
if [ ! -x "$folder/venv/bin/python" ]; then "$python" -m venv "$folder/venv"; fi
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$(dirname "$0")/../../constraints.txt" \
    torch numpy transformers sentencepiece protobuf "$folder/source/gguf-py"
"$folder/build/bin/llama-server" --version
