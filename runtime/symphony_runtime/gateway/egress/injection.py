"""Secrets in the headers of programs' HTTP requests.

A program writes `{{secret:NAME}}` into a header's value. The gateway replaces it when it makes the
request, and only for a URL that the secret may go to: https (or http to this machine, if the
operator allows it), and one of the secret's hosts. A redirect to another origin loses such headers.
A secret in an answer is masked by asterisks: in plain form, or as JSON, HTML, URLs and base64
encode it. The server could encode it in another way: a secret goes only to trusted hosts.
"""

import base64
import html
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote, quote_plus

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import HTTP_HEADER_BYTES_MAX, REQUEST_SECRETS_MAX
from yarl import URL

from symphony_runtime.abi.egress_requests import HttpRequest
from symphony_runtime.config.transport import is_loopback
from symphony_runtime.gateway.egress.vault import Secret, VaultError

_PLACEHOLDER = re.compile(r"\{\{secret:([^{}]*)\}\}")
_MASK = b"***"
Reveal = Callable[[str, Iterable[str]], Awaitable[dict[str, Secret]]]


class Injector:
    """Finds the secrets that a request names."""

    def __init__(self, reveal: Reveal, *, plain_loopback: bool = False) -> None:
        """`reveal` decrypts secrets; `plain_loopback` allows http to this machine."""
        self._reveal = reveal
        self._plain_loopback = plain_loopback

    async def inject(self, tenant: str, request: HttpRequest) -> "Injected":
        """Return the secrets of a request.

        Raises SyscallError: EINVAL, there are too many; ENOENT, the tenant has no such secret; EIO,
        it cannot be decrypted.
        """
        names = set(_PLACEHOLDER.findall("\n".join(request.headers.values())))
        if not names:
            return NOTHING
        if len(names) > REQUEST_SECRETS_MAX:
            detail = f"a request may name at most {REQUEST_SECRETS_MAX} secrets"
            raise SyscallError(Errno.EINVAL, detail)
        try:
            found = await self._reveal(tenant, names)
        except VaultError:
            raise SyscallError(Errno.EIO, "the tenant's secrets cannot be decrypted") from None
        for name in sorted(names - found.keys()):
            raise SyscallError(Errno.ENOENT, f"there is no secret {name!r}")
        return Injected(found, plain_loopback=self._plain_loopback)


class Injected:
    """The secrets of one request and of its redirects."""

    def __init__(self, secrets: dict[str, Secret], *, plain_loopback: bool) -> None:
        self._secrets = secrets
        self._plain_loopback = plain_loopback
        self.redirected = False  # the current URL comes from an answer
        forms = {form for secret in secrets.values() for form in _forms(secret.value)}
        self._forms = sorted(forms, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def headers(self, request: HttpRequest) -> dict[str, str]:
        """Return a request's headers with its secrets filled in.

        Raises SyscallError: EACCES, one may not go there; EFBIG, the headers are too long with
        them.
        """
        if not self._secrets:
            return request.headers
        filled = {name: self._fill(text, request.url) for name, text in request.headers.items()}
        # A compressed answer cannot be searched for secrets.
        filled["accept-encoding"] = "identity"
        if sum(len(k) + len(v.encode()) for k, v in filled.items()) > HTTP_HEADER_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, f"headers of more than {HTTP_HEADER_BYTES_MAX} bytes")
        return filled

    def check_answer(self, encoding: str) -> None:
        """Refuse an answer that cannot be searched for secrets: EIO."""
        if self._secrets and encoding.strip().lower() not in ("", "identity"):
            detail = "a compressed answer to a request with a secret is refused"
            raise SyscallError(Errno.EIO, detail)

    def mask_error(self, text: str) -> str:
        """Return an error's message without the secrets.

        After a redirect it omits the URL, which may contain a secret in any encoding.
        """
        if self.redirected:
            return "a redirect of a request with a secret failed; its address is not shown"
        return self.mask_text(text)

    def mask(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, _MASK)
        return data

    def mask_text(self, text: str) -> str:
        """Return a header's value, or an error's message, without the secrets."""
        if not self._forms:
            return text
        return self.mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def _fill(self, text: str, url: URL) -> str:
        return _PLACEHOLDER.sub(lambda found: self._value(found[1], url), text)

    def _value(self, name: str, url: URL) -> str:
        secret = self._secrets[name]
        plain = self._plain_loopback and is_loopback(url.raw_host or "")
        if url.scheme != "https" and not plain:
            raise SyscallError(Errno.EACCES, f"secret {name!r} may go by https only")
        if not secret.may_go_to(url):
            raise SyscallError(Errno.EACCES, f"secret {name!r} may not go to {url.origin()}")
        return secret.value


NOTHING = Injected({}, plain_loopback=False)


def without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that name no secret, for another origin."""
    return {name: text for name, text in headers.items() if not _PLACEHOLDER.search(text)}


def _forms(value: str) -> set[bytes]:
    """Return the encodings of a value that an answer may contain."""
    raw = value.encode()
    as_json = json.dumps(value)[1:-1]
    texts = {as_json, as_json.replace("/", "\\/"), quote_plus(value)}
    texts |= {quote(value, safe=safe) for safe in ("/", "")}
    texts |= {html.escape(value, quote=quoted) for quoted in (True, False)}
    packed = {base64.b64encode(raw), base64.urlsafe_b64encode(raw)}
    packed |= {form.rstrip(b"=") for form in packed}
    return {raw, *(text.encode() for text in texts), *packed}
