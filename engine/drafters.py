"""The drafter of each mode."""

from __future__ import annotations

from engine.auto import Auto
from engine.draft import Drafter
from engine.ngram import NgramDraft
from engine.request import MODES, Request
from engine.self_draft import SelfDraft
from engine.session import Session


def drafter_for(session: Session, request: Request) -> Drafter | None:
    """None where it is plain decode: by its mode, or because this model cannot go back."""
    sources = MODES[request.speculation.mode].drafters
    if not sources or not session.can_rewind or not request.speculation.draft_length:
        return None
    experience = session.experience
    lookup = NgramDraft(session, request, experience) if "ngram" in sources else None
    own = SelfDraft(session, request, experience) if "self" in sources and session.can_draft else None
    if lookup is not None and "self" in sources:
        return Auto(lookup, own, experience)
    return lookup or own
