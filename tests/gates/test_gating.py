"""Reuse-aware gating: every family's router against a plain reference, and what a lossy mode leaves alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from decoding import Script, answer, prompt_of, request
from families import EXPERTS, FAMILIES, SIGMOID, USED, Family, weights, write_family
from toys import plan_for

from engine.logprobs import logits_of
from engine.native import LayerRouting
from engine.reuse import BUDGET, Reuse
from engine.session import Session

ROWS = tuple(np.random.default_rng(6).integers(263, 355, 6).tolist())
CLAIMS = (0.9, 0.3, 0.75, 0.1, 0.6)
Scores = npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    path = write_family(tmp_path_factory.mktemp("gating") / f"{request.param}.gguf", FAMILIES[request.param])
    with Session.load(path, plan_for(path, n_ctx=512, n_threads=1)) as session:
        session.hooks.set_routing(True)
        yield session


def family_of(session: Session) -> Family:
    return FAMILIES[session.info.path.stem]


def pass_of(
    session: Session, reuse: Reuse | None, rows: Sequence[int] = ROWS
) -> tuple[list[LayerRouting], npt.NDArray[np.float32]]:
    """Routing and logits [rows, vocabulary] of one pass."""
    if reuse is None:
        session.decode(rows, 0, all_logits=True)
    else:
        with session.leaning(reuse, CLAIMS):
            session.decode(rows, 0, all_logits=True)
    layers = session.hooks.routing()
    logits = np.stack([logits_of(session.context, row, len(session.vocab)) for row in range(len(rows))])
    session.rewind(0)
    return layers, logits.copy()


# --- the reference


def scores_of(family: Family, path: Path, layer: LayerRouting) -> Scores:
    """What the family chooses by, before groups; of softmax and what comes after it the logits do as well."""
    scores = layer.logits.astype(np.float64)
    if family.keys.get("expert_gating_func") == SIGMOID:
        scores = 1 / (1 + np.exp(-scores))
    if "exp_probs_b.bias" in family.feed:
        scores = scores + weights(path, f"blk.{layer.layer}.exp_probs_b.bias")
    return scores


def biased(scores: Scores, reuse: Reuse) -> Scores:
    """Section 4.2, line by line."""
    confidence = reuse.confidences(CLAIMS)
    wishes = scores
    if reuse.restricts:
        wishes = np.exp(scores - scores.max(axis=1, keepdims=True))
        wishes /= wishes.sum(axis=1, keepdims=True)
    wanted = sum(w * row for w, row in zip(confidence, wishes, strict=True))
    preferred = np.argsort(-np.asarray(wanted), kind="stable")[: max(reuse.cap, USED)]
    out = scores.copy()
    for row in out[1:]:
        if reuse.restricts:
            row[np.setdiff1d(np.arange(len(row)), preferred)] = -np.inf
            continue
        best = np.sort(row)[::-1]
        row[preferred] += reuse.beta * (best[0] - best[USED])
    return out


def in_groups(family: Family, scores: Scores) -> Scores:
    groups = family.keys.get("expert_group_count")
    if not isinstance(groups, int):
        return scores
    split = scores.copy().reshape(len(scores), groups, -1)
    worth = np.sort(split, axis=2)[:, :, -2:].sum(axis=2)
    worst = np.argsort(-worth, axis=1)[:, family.keys["expert_group_used_count"] :]  # type: ignore[misc]
    np.put_along_axis(split, worst[:, :, None], -np.inf, axis=1)
    return split.reshape(scores.shape)


# At a beta of 1 the first expert that is left out would draw level with the best.
@pytest.mark.parametrize(
    "reuse",
    [Reuse(6, 0.5), Reuse(8, 1.1), Reuse(5, 0.3, by_prefix=True), Reuse(1, 2.0), Reuse(6, BUDGET)],
    ids=str,
)
def test_the_selection_is_the_references(model: Session, reuse: Reuse) -> None:
    family, changed = family_of(model), 0
    for layer in pass_of(model, reuse)[0]:
        scores = scores_of(family, model.info.path, layer)
        expected = np.argsort(-in_groups(family, biased(scores, reuse)), axis=1, kind="stable")[:, :USED]
        assert np.array_equal(np.sort(layer.ranks[:, :USED]), np.sort(expected))
        alone = np.argsort(-in_groups(family, scores), axis=1, kind="stable")[:, :USED]
        changed += not np.array_equal(np.sort(alone), np.sort(expected))
    assert changed, "a bias that changes nothing proves nothing"


# --- what it must not touch


def test_the_root_is_as_if_it_were_alone(model: Session) -> None:
    plain, leaning = pass_of(model, None)[1], pass_of(model, Reuse(6, 1.0))[1]
    assert np.array_equal(leaning[0], plain[0])
    assert not np.array_equal(leaning[1:], plain[1:])


def test_the_weights_of_the_chosen_are_unbiased(model: Session) -> None:
    """With every expert preferred the selection is what it was, so all else must be, too."""
    plain, leaning = pass_of(model, None)[1], pass_of(model, Reuse(EXPERTS, 0.5))[1]
    assert np.array_equal(leaning, plain)


def test_passes_of_another_width_and_later_ones_are_left_alone(model: Session) -> None:
    narrow = pass_of(model, None, ROWS[:3])[1]
    assert np.array_equal(pass_of(model, Reuse(6, 1.0), ROWS[:3])[1], narrow)
    plain = pass_of(model, None)[1]
    pass_of(model, Reuse(6, 1.0))
    assert np.array_equal(pass_of(model, None)[1], plain)


# --- in an answer


def test_a_block_whose_drafts_all_fail_leaves_no_trace(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 300)
    plain = answer(session, request(prompt, tokens=40))
    session.rewind(0)
    wrong = Script(plain.ids, session, len(prompt), wrong=0)
    leaning = answer(session, request(prompt, mode="s2", length=5, tokens=40), wrong)
    assert leaning.timings.draft_n > 0 == leaning.timings.draft_n_accepted
    assert (leaning.ids, leaning.cache) == (plain.ids, plain.cache)
    longer = request((*prompt, *plain.ids, prompt[0]))
    assert answer(session, longer).timings.cache_n == leaning.cells, "and what it wrote may be gone on from"


def test_an_exact_answer_takes_over_nothing_a_lossy_one_wrote(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 300)
    session.rewind(0)
    lossy = answer(session, request(prompt, mode="s2", length=5, tokens=40))
    assert lossy.timings.draft_n_accepted > 0
    longer = request((*prompt, *lossy.ids, prompt[0]), tokens=8)
    on = answer(session, replace(longer, speculation=replace(longer.speculation, mode="s2")))
    assert on.timings.cache_n == lossy.cells
    after = answer(session, longer)
    assert len(prompt) <= after.timings.cache_n < lossy.cells
    session.rewind(0)
    plain = answer(session, request(prompt, tokens=after.timings.cache_n - len(prompt) + 1))
    assert (plain.cells, plain.ids) == (after.timings.cache_n, lossy.ids[: len(plain.ids)])
    expected = answer(session, longer)
    assert (after.ids, after.cache) == (expected.ids, expected.cache)


def test_verify_passes_touch_fewer_experts(session: Session, passage: str) -> None:
    rows = prompt_of(session, passage, 300)[:8]
    claims = [0.8] * 7
    session.keep_routing(True)
    touched = []
    for beta in (0.0, 0.5, 1.0, 100.0):
        with session.leaning(Reuse(12, beta), claims):
            session.decode(rows, 0, all_logits=True)
        touched.append(
            sum(len(np.unique(layer.ranks[:, : layer.n_used])) for layer in session.hooks.routing())
        )
        session.rewind(0)
    session.keep_routing(False)
    assert touched == sorted(touched, reverse=True)
    assert touched[2] < 0.9 * touched[0]


def test_a_budget_of_experts_is_kept(session: Session, passage: str) -> None:
    rows, cap = prompt_of(session, passage, 300)[:8], 12
    session.keep_routing(True)
    with session.leaning(Reuse(cap, BUDGET), [0.8] * 7):
        session.decode(rows, 0, all_logits=True)
    used = [len(np.unique(layer.ranks[1:, : layer.n_used])) for layer in session.hooks.routing()]
    session.rewind(0)
    session.keep_routing(False)
    assert max(used) == cap, "but for the root's own"
