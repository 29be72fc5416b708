"""Which server a program uses, and with which key.

An argument comes first, then SYMPHONY_SERVER and SYMPHONY_KEY, then this user's server that was
started last. The code of a program may be anybody's: so a key of the environment goes only to the
server of the environment, and one that was read from a server's file only to that server.
"""

from symphony.attached.errors import AttachError
from symphony.client.errors import ClientError
from symphony.client.places import NO_SERVER, choose


def find_server(server: str | None = None, key: str | None = None) -> tuple[str, str]:
    """Return a server's address and a key; AttachError: there is none."""
    try:
        found = choose(None, key, project=server)
    except ClientError as error:
        raise AttachError(str(error)) from error
    url, key = found.url, key or found.key
    if url is None:
        raise AttachError(NO_SERVER.format(names="`server=` or SYMPHONY_SERVER"))
    if key is None:
        raise AttachError(
            f"no key is known for {url}: give `key=`, or SYMPHONY_KEY with this address in"
            " SYMPHONY_SERVER"
        )
    return url.rstrip("/"), key
