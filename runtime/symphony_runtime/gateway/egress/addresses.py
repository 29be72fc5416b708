"""Addresses that programs may reach: public ones, and allowed ones.

A name is looked up once for a connection, its addresses are checked, and the connection goes to an
address that was checked. So a name that resolves differently the next time (DNS rebinding) gains
nothing. The address is checked once more where the socket is made, since aiohttp asks no resolver
about URLs with an address.
"""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from symphony_kernel.protocol.errno import Errno

from symphony_runtime.config.egress import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Networks that Python's versions disagree on, or call global: services of a cloud (which reveal a
# machine's secrets), protocol assignments, relays, translation prefixes, documentation.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32", "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
        "192.175.48.0/24", "::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23",
        "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10",
    )
)  # fmt: skip
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedError(OSError):
    """An address that programs may not reach."""


def may_reach(address: str, networks: Sequence[Network]) -> bool:
    """Return whether programs may reach an address: public, or in one of `networks`."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    plain = mapped or found
    if any(plain.version == network.version and plain in network for network in networks):
        return True
    return _is_public(plain)


def _is_public(address: Address) -> bool:
    inner = _embedded(address) if isinstance(address, ipaddress.IPv6Address) else None
    if inner is not None:
        return _is_public(inner)
    if any(address.version == special.version and address in special for special in _SPECIAL):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
    )


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an address embeds (NAT64, Teredo, 6to4), or None."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.sixtofour


class CheckedResolver(AbstractResolver):
    """Returns those addresses of another resolver that may be reached."""

    def __init__(self, resolver: AbstractResolver, networks: Sequence[Network]) -> None:
        self._resolver = resolver
        self._networks = networks

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return a name's allowed addresses; RefusedError if there are none."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [each for each in found if may_reach(each["host"], self._networks)]
        if not allowed:
            raise RefusedError(Errno.EACCES, f"{host} has no public address")
        return allowed

    async def close(self) -> None:
        """Do nothing: the other resolver belongs to its owner."""


class CheckedSockets:
    """Makes sockets for addresses that may be reached (aiohttp's `socket_factory`)."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for a result of getaddrinfo; RefusedError."""
        family, kind, protocol, _, address = info
        if not may_reach(address[0], self._networks):
            raise RefusedError(Errno.EACCES, f"{address[0]} is not public")
        return socket.socket(family, kind, protocol)
