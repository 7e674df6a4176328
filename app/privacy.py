"""Takes out of a report what names its author: user and host, serial numbers, addresses."""

from __future__ import annotations

import getpass
import os
import platform
import re
from pathlib import Path
from typing import Any

HIDDEN = "(hidden)"
_SECRETS = ("OPENAI_API_KEY", "S2CHAT_SERVER")
# Names that many machines share give nobody away, and stand in paths and words of their own.
_COMMON = {"root", "user", "ubuntu", "nvidia", "jetson", "admin", "localhost", "linux", "debian", "home"}
_SERIAL = re.compile(r"(?im)^(.*serial[^:=\n]*[:=]\s*)(\S.*)$")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_IPV4 = re.compile(r"\b(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}\b")


def hide(text: str) -> str:
    """`text` without what is private: keys, names, numbers, addresses. The home folder becomes ~."""
    for name in _SECRETS:
        if len(value := os.environ.get(name, "").strip()) > 2:
            text = text.replace(value, HIDDEN)
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\s\"',:;]|$)", "~", text)
    for name, stand_in in ((_user(), "USER"), (platform.node(), "HOST")):
        if len(name) > 2 and name.lower() not in _COMMON:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", stand_in, text)
    text = _SERIAL.sub(rf"\g<1>{HIDDEN}", text)
    for pattern in (_UUID, _MAC, _IPV4):
        text = pattern.sub(HIDDEN, text)
    return text


def hide_in(value: Any) -> Any:
    """`hide` for every text in plain data."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: hide_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_in(item) for item in value]
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return os.environ.get("USER", "")
