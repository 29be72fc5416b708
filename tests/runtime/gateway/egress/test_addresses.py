"""Which addresses programs may reach."""

import ipaddress
import socket

import pytest
from symphony_runtime.gateway.egress.addresses import CheckedSockets, RefusedError, may_reach

PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808",
          "2002:808:808::1"]  # fmt: skip
REFUSED = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "192.0.0.192",
    "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "168.63.129.16", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
    "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:db8::1",
    "2001:0:5ef5:79fd:0:0:80ff:fffe", "100::1", "64:ff9b:1::7f00:1", "localhost", "2130706433", "",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC + REFUSED)
def test_address_may_be_reached_if_it_is_public(address: str) -> None:
    assert may_reach(address, []) is (address in PUBLIC)


def test_address_in_an_operators_network_may_be_reached() -> None:
    networks = [ipaddress.ip_network("10.1.2.0/24"), ipaddress.ip_network("fd00::/8")]
    assert may_reach("10.1.2.3", networks)
    assert may_reach("::ffff:10.1.2.3", networks)
    assert may_reach("fd00:ec2::254", networks)
    assert not may_reach("10.1.3.3", networks)
    assert not may_reach("127.0.0.1", networks)
    assert not may_reach("64:ff9b::a01:203", networks)  # that way to it is not in the list


def test_socket_is_made_for_allowed_addresses_only() -> None:
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
    with pytest.raises(RefusedError, match="not public"):
        CheckedSockets([])(info)
    CheckedSockets([ipaddress.ip_network("127.0.0.0/8")])(info).close()
