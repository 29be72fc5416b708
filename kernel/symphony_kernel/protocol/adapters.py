"""Names and identities of adapters.

A tenant gives an adapter a name. Its identity is of its files: `<tenant>/sha256:<digest>`. A name
that gets other files has another identity, and so have KV files that were computed with it.
"""

import re

from symphony_kernel.protocol.limits import ADAPTER_NAME_CHARACTERS_MAX

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{ADAPTER_NAME_CHARACTERS_MAX - 1}}}")


def is_adapter_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def adapter_identity(tenant: str, digest: str) -> str:
    """Return the identity of a tenant's files with this SHA-256 in hex."""
    return f"{tenant}/sha256:{digest}"


def adapter_owner(identity: str) -> str:
    """Return the tenant of an identity."""
    return identity.rpartition("/")[0]
