"""A server elsewhere as a link's source: looked at once, never started, never ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import BadRequest, EngineUnavailable
from engine.remote.offer import LOCAL, Offer
from engine.remote.plain import PlainClient
from engine.remote.probe import connect

if TYPE_CHECKING:
    from pathlib import Path

    from app.link import Listener
    from engine.client import EngineClient
    from engine.messages import Snapshot
    from engine.remote.address import Address

_RETRY_S = 5.0


class DistantServer:
    """A `Source` of `app.link`. `offer` is a guess until the server has answered for the first time."""

    retry_s = _RETRY_S
    pid = None

    def __init__(self, address: Address, model: str = "") -> None:
        self._address = address
        self.opening = f"connecting to {address.place}"
        self.model = model
        self.offer: Offer = replace(LOCAL, kind="s2chat", place=address.place)

    def take_key(self, key: str) -> None:
        self._address = replace(self._address, key=key)

    async def open(self) -> EngineClient:
        client = await connect(self._address, self.model)
        self.offer = client.offer
        if isinstance(client, PlainClient):
            self.model = client.model
        return client

    async def prepare(self, client: EngineClient, listener: Listener) -> None:
        """Its model is its own affair."""

    async def switch(self, client: EngineClient, model: Path | str) -> bool:
        """Asks for another of its models from now on. Raises BadRequest where it has one only."""
        if not isinstance(client, PlainClient):
            raise BadRequest("the engine there has one model", hint="start it with another -m on its machine")
        self.model = str(model)
        client.choose(self.model)
        return True

    async def ended(
        self,
        error: EngineUnavailable | None,
        last: Snapshot | None,  # noqa: ARG002 -- nothing is started anew
        listener: Listener,  # noqa: ARG002
    ) -> None:
        raise error or EngineUnavailable(f"{self.offer.place} ended the connection")
