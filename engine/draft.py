"""Where drafts come from. A drafter proposes; only the target decides."""

from __future__ import annotations

from typing import Protocol

from engine.request import MODES, Request
from engine.sampler import Sampler
from engine.session import Session


class Drafter(Protocol):
    """Proposes what may follow. It leaves timeline and KV cache as it found them, also when it raises."""

    def propose(self, root: int, length: int, target: Sampler) -> list[int]:
        """Up to `length` tokens to follow `root`, the drawn token that is not in the cache yet."""
        ...

    def close(self) -> None: ...


class SelfDraft:
    """The target itself with k' of its k experts, on the target's own KV cache (S2-MoE, section 4.3).

    It draws with a copy of the target's sampler in the same state: with equal random numbers, near-equal
    distributions draw equal tokens, so acceptance holds up at any temperature.
    """

    def __init__(self, session: Session, request: Request) -> None:
        self._session = session
        self._experts = request.speculation.draft_experts
        self._ends = not request.ignore_eos
        self._sampler = Sampler.of(request, session.vocab)

    def propose(self, root: int, length: int, target: Sampler) -> list[int]:
        session, drafts, token = self._session, list[int](), root
        start = len(session.timeline)
        self._sampler.copy_from(target)
        session.hooks.set_experts(self._experts)
        try:
            for position in range(start, start + length):
                session.decode((token,), position, all_logits=True)
                token = self._sampler.draw(session.context, 0)
                if self._ends and session.vocab.is_end(token):
                    break  # the target says itself whether this is the end
                drafts.append(token)
        finally:
            session.hooks.set_experts(0)
            session.rewind(start)
        return drafts

    def close(self) -> None:
        self._sampler.close()


def drafter_for(session: Session, request: Request) -> Drafter | None:
    """The drafter of the request's mode; None where it is plain decode."""
    if MODES[request.speculation.mode].drafts and session.can_draft and request.speculation.draft_length:
        return SelfDraft(session, request)
    return None
