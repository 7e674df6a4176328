"""What cannot be done with an engine that is not ours or not here, and why, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.remote.offer import Offer

#: What a server that is not ours does not do, in words that fit beside a key in the help.
_PLAIN = {
    "mode": "has no modes to switch",
    "compare": "has no modes to compare",
    "watch": "does not show its drafts",
    "budget": "does not say its memory",
    "continue": "cannot go on with an answer",
    "room": "does not count tokens",
    "trim": "does not count tokens",
    "summarise": "does not count tokens",
}


def lack(offer: Offer, name: str) -> str:
    """What the server cannot do that the command `name` needs, "" when it can be used."""
    if offer.is_remote and name == "machine":
        return "is another machine"
    return "" if offer.is_ours else _PLAIN.get(name, "")


def lack_of_setting(offer: Offer, key: str, field: str) -> str:
    """Why the setting `key` does not count now, "" when it does."""
    section = key.rpartition(".")[0]
    if section == "sampling":
        return lack_of_field(offer, field)
    if offer.is_remote and section in ("engine", "models"):
        return f"for an engine of this machine; {offer.place} answers now"
    missing = lack(offer, key)
    return missing and f"{offer.place} {missing}"


def lack_of_field(offer: Offer, name: str) -> str:
    """Why requests cannot have the sampling field `name`, "" when they can."""
    name = "chat_template_kwargs" if name == "thinking" else name
    return "" if offer.takes(name) else f"{offer.place} does not take it"
