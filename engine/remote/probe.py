"""Finds out, once, what answers at an address, and makes the client that suits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.client import EngineClient
from engine.errors import BadRequest, EngineUnavailable, Forbidden, ModelError, S2Error
from engine.messages import API_VERSION, Handshake
from engine.remote.address import Address
from engine.remote.network import NetworkTransport
from engine.remote.offer import Offer
from engine.remote.plain import PlainClient
from engine.transport import Garbled, plain_line

_MOST_MODELS = 5000


async def connect(address: Address, model: str = "") -> EngineClient:
    """A client of the server there that asks for `model`, "" for its first one.

    Raises the S2Error that says what is wrong: with the address, the key, the network or the server.
    """
    transport = NetworkTransport(address)
    try:
        prefix, listing = await _listing(transport)
        models = _names(listing)
        if await _is_ours(transport, listing):
            return EngineClient(transport, Offer("s2chat", address.place, models))
        offer = await _foreign(transport, listing, models)
        chosen = model or next(iter(models), "")
        if not chosen:
            raise ModelError(f"{address.place} lists no model", hint="name one with -m")
        return PlainClient(transport, offer, chosen, prefix)
    except BaseException:
        await transport.close()
        raise


async def _listing(transport: NetworkTransport) -> tuple[str, list[Mapping[str, Any]]]:
    """What stands before the names of calls there, and the models it lists."""
    try:
        prefix, answer = "/v1", await transport.call("GET", "/v1/models")
    except ModelError:  # 404
        try:
            prefix, answer = "", await transport.call("GET", "/models")
        except ModelError:
            url = transport.address.root
            raise EngineUnavailable(
                f"no OpenAI server answers at {plain_line(url, 200)}", hint="check the URL and its path"
            ) from None
    data = answer.get("data")
    if not isinstance(data, list):
        raise transport.odd("no list of models")
    return prefix, [item for item in data[:_MOST_MODELS] if isinstance(item, dict)]


def _names(listing: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names are sent back as they are, so one that no line can show is none."""
    names = [item.get("id") for item in listing]
    return tuple(name for name in names if isinstance(name, str) and name and name.isprintable())


async def _is_ours(transport: NetworkTransport, listing: list[Mapping[str, Any]]) -> bool:
    if any(item.get("owned_by") != "local" for item in listing):
        return False
    try:
        hello = Handshake.from_json(await transport.call("GET", "/handshake"))
    except (Garbled, ModelError, BadRequest, Forbidden, KeyError, TypeError, ValueError):
        return False
    if hello.api[0] != API_VERSION[0]:
        raise EngineUnavailable(
            f"the engine at {transport.name} speaks protocol {hello.api[0]}, this program {API_VERSION[0]}",
            hint="run the same version on both sides",
        )
    return True


async def _foreign(
    transport: NetworkTransport, listing: list[Mapping[str, Any]], models: tuple[str, ...]
) -> Offer:
    place = transport.name
    if any(item.get("owned_by") == "llamacpp" for item in listing):
        return Offer("llama-server", place, models, await _props_context(transport))
    sizes = [item.get("max_model_len") for item in listing]  # vLLM's
    return Offer("openai", place, models, next((size for size in sizes if type(size) is int and size > 0), 0))


async def _props_context(transport: NetworkTransport) -> int:
    """The context of one slot of a llama-server, 0 where it does not say."""
    try:
        props = await transport.call("GET", "/props")
        size = props["default_generation_settings"]["n_ctx"]
    except (S2Error, KeyError, TypeError):
        return 0
    return size if type(size) is int and size > 0 else 0
