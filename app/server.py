"""Which server answers, and the key for it: from the command line, the environment or the settings."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import BadRequest
from engine.remote.address import Address, check_key, parse_address

if TYPE_CHECKING:
    from app.settings import Settings

LOCAL = "local"
_SERVER, _KEY = "S2CHAT_SERVER", "OPENAI_API_KEY"
_LARGEST = 1 << 16


def take_server(arguments: argparse.Namespace, settings: Settings) -> None:
    """Sets `address` and `remote_model` of the command line.

    Key and model of the settings are for the server of the settings, and for no other.
    """
    model = str(arguments.model or "")
    arguments.server = arguments.server or os.environ.get(_SERVER) or None
    if arguments.server is None and settings.get("server.url"):
        arguments.server = settings.get("server.url")
        arguments.key_file = arguments.key_file or settings.get("server.key_file")
        model = model or settings.get("server.model") or ""
    arguments.address = address_of(arguments)
    arguments.remote_model = model


def address_of(arguments: argparse.Namespace) -> Address | None:
    """Where answers come from, with the key to show there; None for this machine.

    A key that the environment has for everything is not sent where others can read it on the way: that takes
    a file which somebody named for this server.
    """
    if not arguments.server or arguments.server == LOCAL:
        if arguments.key_file is not None:
            raise BadRequest("--key-file without --server", hint="name the server that the key is for")
        return None
    address = parse_address(arguments.server)
    if arguments.key_file is not None:
        return replace(address, key=read_key(arguments.key_file))
    key = check_key(os.environ.get(_KEY, ""))
    return replace(address, key=key) if address.is_private else address


def read_key(path: Path) -> str:
    """The key in the file at `path`. Raises BadRequest that never shows what is in it."""
    try:
        with open(path.expanduser(), "rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise BadRequest(f"the key file {path} cannot be read: {error.strerror}") from None
    key = check_key(text)
    if not key:
        raise BadRequest(f"the key file {path} is empty", hint="put the key into its first line")
    return key


def key_source(address: Address, key_file: object) -> str:
    """Where the key comes from, without it."""
    if key_file:
        return "from a file"
    if not os.environ.get(_KEY):
        return "none"
    return f"from {_KEY}" if address.is_private else f"none: {_KEY} is not sent over plain http"
