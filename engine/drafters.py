"""The drafter of each mode."""

from __future__ import annotations

from engine.auto import Auto
from engine.draft import Drafter
from engine.ngram import NgramDraft
from engine.request import MODES, Request
from engine.self_draft import SelfDraft
from engine.session import Session


def drafter_for(session: Session, request: Request) -> Drafter | None:
    """None where it is plain decode: by its mode, or because this model cannot go back.

    Raises BadRequest where the mode needs memory that is not there.
    """
    mode = MODES[request.speculation.mode]
    if not mode.apart:
        session.annex.rest()
    sources = mode.drafters
    if not sources or not session.can_rewind or not request.speculation.draft_length:
        return None
    experience = session.experience
    lookup = NgramDraft(session, request, experience) if "ngram" in sources else None
    own = _self_draft(session, request) if "self" in sources and session.can_draft else None
    if lookup is not None and "self" in sources:
        return Auto(lookup, own, experience)
    return lookup or own


def _self_draft(session: Session, request: Request) -> SelfDraft:
    """It tries other k' where that shows in nothing but the speed, and nobody asked for this one."""
    calibration, speculation = session.calibration, request.speculation
    if (
        calibration is None
        or not calibration.may_begin
        or not MODES[speculation.mode].exact
        or speculation.expands_by != "priced"
        or speculation.draft_experts != calibration.default
    ):
        calibration = None
    return SelfDraft(session, request, session.experience, calibration)
