"""`symphony serve`: its options, and the start of the supervisor."""

import argparse
import os
from pathlib import Path

from symphony_runtime.config.serve import default_data_dir, read_options

_GUARD_OPTIONS = (
    "tls_cert", "tls_key", "behind_proxy", "queue_seconds_max", "memory_free_bytes_min",
    "slow_grace_seconds", "slow_bytes_a_second", "slow_reader_seconds", "workers_per_tenant",
    "disk_reserve_bytes", "disk_bytes_max",
)  # fmt: skip


def serve(options: argparse.Namespace) -> int:
    from symphony_runtime.supervisor.supervisor import serve as run_server

    names = ("model", "host", "port", "workers", "data_dir", "device", "dtype", "quantize",
             "tensor_parallel", "executor", "pool_bytes", "host_pool_tokens", "disk_pool_tokens",
             "threads", "drain_seconds", "max_decode_gap_ms", "delivery_ms", "journal", "publish",
             "require_containment", *_GUARD_OPTIONS)  # fmt: skip
    given = {name: getattr(options, name) for name in names}
    given["store"] = options.store or os.environ.get("SYMPHONY_STORE") or None
    return run_server(read_options(options.config, given))


def add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--model", help="tiny (the default), or a folder in Hugging Face layout")
    serve.add_argument("--host", help="default 127.0.0.1")
    serve.add_argument("--port", type=int, help="default 8700; 0 is any free one")
    serve.add_argument("--workers", type=int, help="default 1")
    serve.add_argument("--data-dir", type=Path, help=f"default {default_data_dir()}")
    serve.add_argument("--device", choices=("auto", "cpu", "cuda"))
    serve.add_argument("--dtype", choices=("auto", "fp32", "bf16"))
    serve.add_argument(
        "--quantize",
        choices=("none", "int8"),
        help="of the weights; default none; it loses a little accuracy",
    )
    several = "devices that share the model, a process for each; default 1"
    serve.add_argument("--tensor-parallel", type=int, metavar="N", help=several)
    serve.add_argument("--config", type=Path, help="a TOML file with options")
    serve.add_argument("--pool-bytes", type=int, help="memory for KV pages")
    room = "KV entries in host memory; default as many as in the pool, as far as memory goes"
    serve.add_argument("--host-pool-tokens", type=int, help=room)
    serve.add_argument("--disk-pool-tokens", type=int, help="KV entries in a file; default none")
    serve.add_argument("--threads", type=int, help="of the model's computations")
    serve.add_argument("--drain-seconds", type=float, help="the time of live runs after SIGTERM")
    gap = "the longest step that computes prompts with others' decodes; default 200"
    serve.add_argument("--max-decode-gap-ms", type=float, help=gap)
    late = (
        "tokens of a generation are delivered together, at most this late; default 25, 0: at once"
    )
    serve.add_argument("--delivery-ms", type=float, help=late)
    serve.add_argument("--publish", action="store_true", default=None,
                       help="programs may make KV files public")  # fmt: skip
    locked = "refuse workers that are not contained in every way that this system allows"
    serve.add_argument("--require-containment", action="store_true", default=None, help=locked)
    without = "keep no journal: runs end when the kernel crashes"
    serve.add_argument("--no-journal", dest="journal", action="store_false", default=None,
                       help=without)  # fmt: skip
    _add_guard_options(serve)
    store = "URL of a PostgreSQL database, which several gateways may share (else SYMPHONY_STORE)"
    serve.add_argument("--store", metavar="URL", help=store)
    # For tests and benchmarks of everything but the model.
    serve.add_argument("--executor", choices=("torch", "simulated"), help=argparse.SUPPRESS)


def _add_guard_options(serve: argparse.ArgumentParser) -> None:
    cert = "PEM file with the certificate and its chain: the gateway speaks TLS"
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help=cert)
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file with its private key")
    proxy = "a proxy in front ends TLS: serve other machines without TLS"
    serve.add_argument("--behind-proxy", action="store_true", default=None, help=proxy)
    own = "no worker process runs two tenants' programs; needs as many workers as live tenants"
    serve.add_argument("--workers-per-tenant", action="store_true", default=None, help=own)
    queue = "a run that would wait longer is answered 503 or 429; default 30, 0: any time"
    serve.add_argument("--queue-seconds-max", type=float, metavar="S", help=queue)
    memory = "with less free memory a run is answered 503; default 128 MiB, 0: never"
    serve.add_argument("--memory-free-bytes-min", type=int, metavar="N", help=memory)
    grace = "for clients that send nothing of a body; default 30"
    serve.add_argument("--slow-grace-seconds", type=float, metavar="S", help=grace)
    rate = "that clients send of a body at least; default 4096"
    serve.add_argument("--slow-bytes-a-second", type=int, metavar="N", help=rate)
    reader = "a client that reads nothing of its answer for so long is cut off; default 30"
    serve.add_argument("--slow-reader-seconds", type=float, metavar="S", help=reader)
    reserve = "of the data directory's disk, for deletions and ends of runs; default: a twentieth"
    serve.add_argument("--disk-reserve-bytes", type=int, metavar="N", help=reserve)
    disk = "the most that the data directory may take; default: the whole disk"
    serve.add_argument("--disk-bytes-max", type=int, metavar="N", help=disk)
