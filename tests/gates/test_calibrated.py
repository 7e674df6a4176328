"""While k' is being found the text is that of plain decode, and the next start takes what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from decoding import answer, prompt_of, request
from toys import plan_for

from engine.calibration import candidates
from engine.drafters import drafter_for
from engine.measured import read_measured
from engine.paths import EMBEDDED_MODEL
from engine.request import MODES, Request
from engine.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=1024, n_threads=1, store=True)) as one:
        yield one


def endless(asked: Request) -> Request:
    """As long as it may be."""
    return replace(asked, ignore_eos=True)


def test_answers_of_exact_modes_find_k_and_stay_as_they_are(
    session: Session, passage: str, tmp_path: Path
) -> None:
    file = tmp_path / "k.json"
    session.calibrate(file)
    calibration = session.calibration
    assert calibration is not None
    default = session.plan.speculation.draft_experts
    prompt = prompt_of(session, passage, 100)
    expected = answer(session, endless(request(prompt, temperature=0.8)))
    assert calibration.may_begin, "plain decode has been measured"
    for _ in range(4):
        session.rewind(0)
        asked = request(prompt, mode="s2-exact", k=default, length=8, expansion="", temperature=0.8)
        drafted = answer(session, endless(asked))
        assert (drafted.ids, drafted.cache) == (expected.ids, expected.cache)
        if calibration.found is not None:
            break
    tried = {row["experts"] for row in json.loads(file.read_text())["tried"]}
    assert tried == {*candidates(session.info.n_expert_used), default}
    measured = read_measured(file, session.info)
    assert measured is not None
    assert measured.draft_experts == calibration.found


@pytest.mark.parametrize("change", ["s2", "es", "cascade", "another k'", "fixed"])
def test_nothing_is_tried_where_it_would_show_or_was_not_left_open(
    session: Session, passage: str, tmp_path: Path, change: str
) -> None:
    session.calibrate(tmp_path / "k.json")
    prompt, default = prompt_of(session, passage, 64), session.plan.speculation.draft_experts
    answer(session, request(prompt, tokens=16))
    asked = request(
        prompt,
        mode=change if change in MODES else "s2-exact",
        k=default + (change == "another k'"),
        expansion="fixed" if change == "fixed" else "",
    )
    open_one = request(prompt, mode="s2-exact", k=default, expansion="")
    for one, tries in ((asked, False), (open_one, True)):
        drafter = drafter_for(session, one)
        assert drafter is not None
        assert (drafter._calibration is not None) is tries  # type: ignore[attr-defined]
        drafter.close()
