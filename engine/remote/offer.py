"""What the other end of a client can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: This machine's engine, one of ours elsewhere, llama.cpp's server, or anything that speaks plain OpenAI.
Kind = Literal["local", "s2chat", "llama-server", "openai"]

#: Fields of a request that every OpenAI server takes; some refuse all others.
_STANDARD = frozenset(
    ("temperature", "top_p", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty")
)
_LLAMA = frozenset(("top_k", "min_p", "repeat_penalty", "repeat_last_n", "chat_template_kwargs"))


@dataclass(frozen=True, slots=True)
class Offer:
    """`place`: host and port, "" for this machine. `n_ctx` 0: unknown."""

    kind: Kind
    place: str = ""
    models: tuple[str, ...] = ()
    n_ctx: int = 0

    @property
    def is_ours(self) -> bool:
        """Modes, budget, exact counts, answers that go on: all there."""
        return self.kind in ("local", "s2chat")

    @property
    def is_remote(self) -> bool:
        return self.kind != "local"

    def takes(self, field: str) -> bool:
        """Whether requests may have `field`."""
        return self.is_ours or field in _STANDARD or (self.kind == "llama-server" and field in _LLAMA)


LOCAL = Offer("local")
