"""How clients reach the gateway: this machine only, TLS, or a proxy in front that ends TLS.

Keys and programs' inputs travel on these connections, so off loopback nothing is served in the
open unless the operator says that a proxy stands in front (`--behind-proxy`).
"""

import ipaddress
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)


class TransportError(Exception):
    """It cannot be served so; the words are for the operator."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name that may resolve to anything


def check_transport(host: str, cert: Path | None, key: Path | None, *, behind_proxy: bool) -> None:
    """Check that a host may be served so.

    Raises:
        TransportError: it may not; what to do is in the words.
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


class Certificate:
    """A certificate with its key, for a server; a renewed one is taken without a new start."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Read both.

        Raises:
            TransportError: they cannot be read, or do not fit.
        """
        self._cert = cert
        self._key = key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamp = self._stamps()
        self._load()

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether new connections get others.

        Files that cannot be read leave what there was: the operator may be writing them.
        """
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return False
            self._load()
        except TransportError as error:
            _log.error("the certificate was not renewed: %s", error)
            return False
        self._stamp = stamp
        return True

    def _load(self) -> None:
        try:
            self.context.load_cert_chain(self._cert, self._key, password=_no_password(self._key))
        except (OSError, ssl.SSLError) as error:
            raise TransportError(f"{self._cert} with {self._key}: {error}") from error

    def _stamps(self) -> tuple[int, int]:
        try:
            return self._cert.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        except OSError as error:
            raise TransportError(f"{error.filename}: {error.strerror}") from error


def _no_password(key: Path) -> Callable[[], str]:
    """Return what is called for a key with a password: nobody is there to type it."""

    def refuse() -> str:
        raise TransportError(f"{key} is protected by a password, which nobody is there to type")

    return refuse
