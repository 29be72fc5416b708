"""Tells the service manager how far the server is, where one started it: sd_notify(3)."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state to the socket that NOTIFY_SOCKET names, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, contextlib.suppress(OSError):  # the server serves all the same
        sender.sendto(state.encode(), address)
