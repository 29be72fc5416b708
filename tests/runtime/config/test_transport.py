"""Other machines are served with TLS, or behind a proxy that ends it."""

import os
import ssl
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.config.serve import OptionsError, read_options
from symphony_runtime.config.transport import Certificate, TransportError, check_transport
from symphony_runtime.gateway.app import serve
from symphony_runtime.gateway.config import ConfigError, GatewayConfig

from tests.support.gateway.certificates import make_certificate
from tests.support.gateway.system import SystemRig


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_transport_off_loopback_needs_tls_or_a_proxy(host: str) -> None:
    with pytest.raises(TransportError, match="--tls-cert and --tls-key, or --behind-proxy"):
        check_transport(host, None, None, behind_proxy=False)
    check_transport(host, None, None, behind_proxy=True)
    check_transport(host, Path("c"), Path("k"), behind_proxy=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_transport_on_loopback_needs_nothing(host: str) -> None:
    check_transport(host, None, None, behind_proxy=False)
    check_transport(host, Path("c"), Path("k"), behind_proxy=False)


def test_transport_options_that_contradict_are_refused(tmp_path: Path) -> None:
    for cert, key, proxy in (("c", None, False), (None, "k", False), ("c", "k", True)):
        values = {"tls_cert": cert and Path(cert), "tls_key": key and Path(key)}
        with pytest.raises(OptionsError):
            read_options(None, {**values, "behind_proxy": proxy})
    with pytest.raises(OptionsError, match="can be reached by other machines"):
        read_options(None, {"host": "0.0.0.0"})
    file = tmp_path / "symphony.toml"
    file.write_text('host = "0.0.0.0"\ntls_cert = "c.pem"\ntls_key = "/k.pem"\n')
    options = read_options(file, {})
    assert (options.tls_cert, options.tls_key) == (tmp_path / "c.pem", Path("/k.pem"))


async def test_gateway_off_loopback_without_tls_does_not_start(tmp_path: Path) -> None:
    config = GatewayConfig(
        socket=tmp_path / "g", secrets={}, secret=b"", kernel_socket=tmp_path / "k",
        data_dir=tmp_path / "data", host="0.0.0.0", port=0,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="can be reached by other machines"):
        async with serve(config):
            pass
    assert not (tmp_path / "data").exists()


def test_certificate_is_renewed_and_never_lost(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    certificate = Certificate(cert, key)
    assert certificate.renew() is False
    cert.write_text("not yet written")
    assert certificate.renew() is False, "what there was stays"
    make_certificate(tmp_path)
    os.utime(cert, ns=(1, 1))
    assert certificate.renew() is True
    assert certificate.renew() is False


def test_certificate_that_is_invalid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="No such file"):
        Certificate(tmp_path / "none", tmp_path / "none")
    locked = make_certificate(tmp_path, b"password")
    with pytest.raises(TransportError, match="password"):
        Certificate(*locked)
    cert, _ = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = make_certificate(tmp_path / "other")
    with pytest.raises(TransportError):
        Certificate(cert, other)


async def test_gateway_with_a_certificate_speaks_tls_only(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    data = tmp_path / "data"
    async with SystemRig(data, tls_cert=cert, tls_key=key, worker=False) as system:
        url = f"https://127.0.0.1:{system.gateway.port}/healthz"
        trusted = ssl.create_default_context(cafile=str(cert))
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=trusted) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(url)  # it is signed by no authority
            with pytest.raises(aiohttp.ClientError):
                await session.get(url.replace("https", "http"))
