"""Where a server is and the key it wants to be shown."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from engine.errors import BadRequest

_MOST_KEY = 4096
#: Ends of URLs that people copy from elsewhere; each call has its own.
_ENDS = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, slots=True)
class Address:
    """`root`: the URL without /v1 and without a slash at its end. `key`: "" for none; it is never shown."""

    root: str
    key: str = field(default="", repr=False)

    @property
    def place(self) -> str:
        """Host and port, as people call it."""
        return urlsplit(self.root).netloc

    @property
    def host(self) -> str:
        return urlsplit(self.root).hostname or ""

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, or a tunnel that begins here."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along."""
        return self.is_loopback or self.root.startswith("https://")


def parse_address(text: str, key: str = "") -> Address:
    """The server at the URL `text`, with or without /v1. Raises BadRequest that says what is wrong."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for one that is no number
        host = parts.hostname
    except ValueError as error:
        raise BadRequest(f"the server's URL cannot be read: {error}", hint=_LIKE) from None
    if "@" in parts.netloc:  # not repeated: it may hold a password
        raise BadRequest("a user or key does not belong into the server's URL", hint=_KEY)
    if parts.scheme not in ("http", "https") or not host:
        raise BadRequest(f"{text!r} is no URL of a server", hint=_LIKE)
    if parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise BadRequest(f"{text!r}: a server's URL ends with its path", hint=_LIKE)
    path = parts.path.rstrip("/")
    for end in _ENDS:
        path = path.removesuffix(end)
    path = path.removesuffix("/v1")
    return Address(f"{parts.scheme}://{parts.netloc}{path}", check_key(key))


_LIKE = "as in http://127.0.0.1:8080 or https://host.example/v1"
_KEY = "put the key into a file and name it with --key-file, or set OPENAI_API_KEY"


def check_key(text: str) -> str:
    """The key in `text`, white space around it removed. Raises BadRequest for what no header can carry."""
    key = text.strip()
    if len(key) > _MOST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadRequest("this is no key: it has spaces, line ends or unusual characters", hint=_KEY)
    return key
