"""What each role sees of the operator's environment: what it needs, and no secret of others.

The supervisor gives these to the processes that it starts. A name that is listed neither alone nor
by its prefix is not passed on, and none whose words say that it is a secret (`NVIDIA_API_KEY`),
but for those of PostgreSQL where the gateway's database is one.
"""

import re
from collections.abc import Mapping
from typing import Final

# Where Python, its packages and what was compiled here are.
_PYTHON: Final = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL",
    "TMPDIR", "SYMPHONY_LOG", "SYMPHONY_CACHE_DIR", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
# The rest of what an operator sets for any service: languages, time, allocators, the interpreter.
_COMMON: Final = ("LANGUAGE", "TZ", "TZDIR", "LD_PRELOAD", "GLIBC_TUNABLES")
_COMMON_PREFIXES: Final = ("LC_", "XDG_", "PYTHON", "SYMPHONY_", "MALLOC_")
# Threads, devices, and what compiles kernels for these.
_KERNEL: Final = (
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "MAX_JOBS",
)  # fmt: skip
_KERNEL_PREFIXES: Final = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "RAYON_",
    "TOKENIZERS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_",
    "NCCL_", "GLOO_", "TRITON_", "FLASHINFER_", "NINJA_",
)  # fmt: skip
# Certificates, names of hosts, and what tool servers have of it without being given it.
_GATEWAY: Final = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "OPENSSL_CONF", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES",
    "LOGNAME", "SHELL", "TERM", "USER",
)  # fmt: skip
_POSTGRESQL: Final = re.compile(r"PG[A-Z]+")  # libpq's own
_SECRET: Final = frozenset({"KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "STORE"})


def of_worker(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker sees."""
    seen = {name: environment[name] for name in _PYTHON if name in environment}
    # Threads that NumPy would start unasked keep their files when the worker locks itself down.
    seen["OPENBLAS_NUM_THREADS"] = "1"
    return seen


def of_kernel(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the kernel sees."""
    seen = _chosen(environment, _KERNEL, _KERNEL_PREFIXES)
    # Threads of torch that spin would take the processor from gateway and workers.
    return {"OMP_WAIT_POLICY": "PASSIVE", **seen}


def of_gateway(environment: Mapping[str, str], *, postgresql: bool) -> dict[str, str]:
    """Return what the gateway sees; libpq's names where its database is a PostgreSQL."""
    seen = _chosen(environment, _GATEWAY, ())
    if postgresql:
        seen |= {name: environment[name] for name in environment if _POSTGRESQL.fullmatch(name)}
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
