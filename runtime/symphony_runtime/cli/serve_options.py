"""Options of `symphony serve` about who may come, and how many."""

import argparse
from pathlib import Path

GUARD_OPTIONS = (
    "tls_cert", "tls_key", "behind_proxy", "queue_seconds_max", "memory_free_bytes_min",
    "slow_grace_seconds", "slow_bytes_a_second", "slow_reader_seconds", "workers_per_tenant",
    "disk_reserve_bytes", "disk_bytes_max",
)  # fmt: skip


def add_guard_options(serve: argparse.ArgumentParser) -> None:
    """Add them; the values of those that are not given are None."""
    cert = "PEM file with the certificate and those above it: the gateway speaks TLS"
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help=cert)
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file with its private key")
    proxy = "a proxy in front ends TLS: serve other machines without it"
    serve.add_argument("--behind-proxy", action="store_true", default=None, help=proxy)
    own = "no worker's process runs two tenants' programs; needs as many workers as tenants at once"
    serve.add_argument("--workers-per-tenant", action="store_true", default=None, help=own)
    queue = "a run that would wait longer is answered 503 or 429; default 30, 0: any time"
    serve.add_argument("--queue-seconds-max", type=float, metavar="S", help=queue)
    memory = "with less memory left a run is answered 503; default 128 MiB, 0: never"
    serve.add_argument("--memory-free-bytes-min", type=int, metavar="N", help=memory)
    grace = "for clients that bring nothing of a body; default 30"
    serve.add_argument("--slow-grace-seconds", type=float, metavar="S", help=grace)
    rate = "that clients bring of a body at least; default 4096"
    serve.add_argument("--slow-bytes-a-second", type=int, metavar="N", help=rate)
    reader = "a client that takes nothing of its answer for so long is cut off; default 30"
    serve.add_argument("--slow-reader-seconds", type=float, metavar="S", help=reader)
    reserve = "of the data directory's disk, for deletions and ends of runs; default: a twentieth"
    serve.add_argument("--disk-reserve-bytes", type=int, metavar="N", help=reserve)
    disk = "that all in the data directory may have; default: what the disk has"
    serve.add_argument("--disk-bytes-max", type=int, metavar="N", help=disk)
