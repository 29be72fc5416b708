"""The part of the operator's environment that each role sees.

The supervisor gives it to the processes that it starts. A name is passed on only if it is listed,
alone or by its prefix. A name that contains a word for a secret (`NVIDIA_API_KEY`) is not passed
on, except to the gateway: PostgreSQL's if its database is one, OpenTelemetry's if it sends traces.
"""

import re
from collections.abc import Mapping
from typing import Final

from symphony_runtime.config.otlp import PREFIX

# For Python, its packages, and compiled files.
_PYTHON: Final = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL",
    "TMPDIR", "SYMPHONY_LOG", "SYMPHONY_CACHE_DIR", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
# What operators set for any service: languages, time, allocators, the interpreter.
_COMMON: Final = ("LANGUAGE", "TZ", "TZDIR", "LD_PRELOAD", "GLIBC_TUNABLES")
_COMMON_PREFIXES: Final = ("LC_", "XDG_", "PYTHON", "SYMPHONY_", "MALLOC_")
# Threads, devices, and compilers of kernels.
_KERNEL: Final = (
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "MAX_JOBS",
)  # fmt: skip
_KERNEL_PREFIXES: Final = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "RAYON_",
    "TOKENIZERS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_",
    "NCCL_", "GLOO_", "TRITON_", "FLASHINFER_", "NINJA_",
)  # fmt: skip
# Certificates, host names, and what tool servers inherit.
_GATEWAY: Final = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "OPENSSL_CONF", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES",
    "LOGNAME", "SHELL", "TERM", "USER",
)  # fmt: skip
_POSTGRESQL: Final = re.compile(r"PG[A-Z]+")  # libpq's names
_SECRET: Final = frozenset({"KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "STORE"})


def of_worker(environment: Mapping[str, str]) -> dict[str, str]:
    seen = {name: environment[name] for name in _PYTHON if name in environment}
    # NumPy's threads would keep their files when the worker locks itself down.
    seen["OPENBLAS_NUM_THREADS"] = "1"
    return seen


def of_kernel(environment: Mapping[str, str]) -> dict[str, str]:
    seen = _chosen(environment, _KERNEL, _KERNEL_PREFIXES)
    # Spinning threads of torch would take the processor from gateway and workers.
    return {"OMP_WAIT_POLICY": "PASSIVE", **seen}


def of_gateway(
    environment: Mapping[str, str], *, postgresql: bool, traces: bool = False
) -> dict[str, str]:
    """Return the gateway's environment, with libpq's names if it uses PostgreSQL.

    With `traces` also OpenTelemetry's.
    """
    seen = _chosen(environment, _GATEWAY, ())
    if postgresql:
        seen |= {name: environment[name] for name in environment if _POSTGRESQL.fullmatch(name)}
    if traces:
        seen |= {name: environment[name] for name in environment if name.startswith(PREFIX)}
    return seen


def _chosen(
    environment: Mapping[str, str], names: tuple[str, ...], prefixes: tuple[str, ...]
) -> dict[str, str]:
    known, prefixes = {*_PYTHON, *_COMMON, *names}, (*_COMMON_PREFIXES, *prefixes)
    return {
        name: value
        for name, value in environment.items()
        if (name in known or name.startswith(prefixes)) and _SECRET.isdisjoint(name.split("_"))
    }
