"""What cannot be done with an engine that is not ours or not here, and why, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.remote.offer import Offer

_UNCOUNTED = "{place} does not count tokens, so nobody knows what would fit"
_PLAIN = {
    "mode": "{place} decodes in its own way: there are no modes to switch",
    "budget": "{place} does not say what memory it takes",
    "continue": "{place} cannot let an answer go on; Ctrl+R asks again",
    "room": _UNCOUNTED,
    "trim": _UNCOUNTED,
    "summarise": _UNCOUNTED,
}
_THERE = "for an engine of this machine; {place} answers now"


def lack(offer: Offer, name: str) -> str:
    """Why the command `name` does nothing here, "" when it can be used."""
    return "" if offer.is_ours else _PLAIN.get(name, "").format(place=offer.place)


def lack_of_field(offer: Offer, name: str) -> str:
    """Why requests cannot have the sampling field `name`, "" when they can."""
    name = "chat_template_kwargs" if name == "thinking" else name
    return "" if offer.takes(name) else f"{offer.place} does not take it"


def lack_of_setting(offer: Offer, key: str, field: str) -> str:
    """Why the setting `key` does not count now, "" when it does."""
    section = key.rpartition(".")[0]
    if section == "sampling":
        return lack_of_field(offer, field)
    if offer.is_remote and section in ("engine", "models"):
        return _THERE.format(place=offer.place)
    return lack(offer, key)
