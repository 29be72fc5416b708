"""How clients reach the gateway: from this machine, with TLS, or through a proxy that ends TLS.

Keys and inputs of programs travel on these connections. So other machines are served without TLS
only if the operator says that a proxy ends it (`--behind-proxy`).
"""

import ipaddress
import logging
import ssl
from pathlib import Path

from yarl import URL

_log = logging.getLogger(__name__)


class TransportError(Exception):
    """The host cannot be served so. The message is for the operator."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name that may resolve to anything


def check_transport(host: str, cert: Path | None, key: Path | None, *, behind_proxy: bool) -> None:
    """Check that a host may be served so.

    Raises TransportError: it may not; the message says what to do.
    """
    if (cert is None) != (key is None):
        raise TransportError("tls_cert and tls_key go together: a certificate and its private key")
    if cert is not None and behind_proxy:
        raise TransportError(
            "tls_cert and behind_proxy exclude each other: either TLS ends here, or at the proxy"
        )
    if cert is None and not behind_proxy and not is_loopback(host):
        raise TransportError(
            f"{host} can be reached by other machines, and keys would travel in the open: give "
            "--tls-cert and --tls-key, or --behind-proxy where a proxy in front ends TLS"
        )


def check_origins(origins: list[str]) -> None:
    """Check the origins of web pages that may call the server.

    Raises TransportError: one is neither `*` nor as a browser sends it.
    """
    for origin in origins:
        try:
            good = origin == "*" or (origin == str(URL(origin).origin()) and "*" not in origin)
        except ValueError:
            good = False
        if not good:
            raise TransportError(
                f"cors_origins: {origin!r} is no origin: it must be https://host[:port], or *"
            )


class Certificate:
    """A server's certificate with its key; a renewed one needs no restart."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Read both files. TransportError: they cannot be read, or do not match."""
        self._cert = cert
        self._key = key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._modified()
        self._load()

    def renew(self) -> bool:
        """Read changed files again; return whether new connections get a new certificate.

        Files that cannot be read change nothing: the operator may be writing them.
        """
        try:
            stamp = self._modified()
            if stamp == self._seen:
                return False
            self._load()
        except TransportError as error:
            _log.error("cannot renew the certificate: %s", error)
            return False
        self._seen = stamp
        return True

    def _load(self) -> None:
        try:
            self.context.load_cert_chain(self._cert, self._key, password=self._refuse_password)
        except (OSError, ssl.SSLError) as error:
            raise TransportError(f"{self._cert} with {self._key}: {error}") from error

    def _modified(self) -> tuple[int, int]:
        try:
            return self._cert.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        except OSError as error:
            raise TransportError(f"{error.filename}: {error.strerror}") from error

    def _refuse_password(self) -> str:
        raise TransportError(f"{self._key} is protected by a password: give a key without one")
