"""What the hooks in llama.cpp do: draft experts and the routing read-out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from decoding import prompt_of

from engine.experts import catalogue_of
from engine.native import LayerRouting
from engine.session import Session


@pytest.fixture
def routed(session: Session) -> Iterator[Session]:
    session.hooks.set_routing(True)
    yield session
    session.hooks.set_routing(False)
    session.hooks.set_experts(0)


def routing_of(session: Session, rows: tuple[int, ...], experts: int) -> list[LayerRouting]:
    session.hooks.set_experts(experts)
    session.decode(rows, 0, all_logits=True)
    layers = session.hooks.routing()
    session.rewind(0)
    return layers


def test_every_layer_of_every_row_is_read_out(routed: Session, passage: str) -> None:
    rows = prompt_of(routed, passage, 40)[:5]
    layers = routing_of(routed, rows, 0)
    with_experts = {stack.layer for stack in catalogue_of(routed.info.path).tensors}
    assert [layer.layer for layer in layers] == sorted(with_experts)
    for layer in layers:
        assert layer.n_used == routed.info.n_expert_used
        assert layer.logits.shape == layer.ranks.shape == (len(rows), routed.info.n_expert)
        # Softmax keeps the order of the logits, so the ranking is theirs.
        order = np.argsort(-layer.logits, axis=1, kind="stable")
        assert np.array_equal(order, layer.ranks)


def test_a_draft_uses_fewer_experts_and_still_ranks_all(routed: Session, passage: str) -> None:
    rows = prompt_of(routed, passage, 40)[:1]
    full, draft = routing_of(routed, rows, 0), routing_of(routed, rows, 2)
    assert {layer.n_used for layer in draft} == {2}
    # The first router sees the same input, with 2 experts behind it or all; later ones do not.
    assert np.array_equal(full[0].logits, draft[0].logits)
    assert any(not np.array_equal(a.logits, b.logits) for a, b in zip(full[1:], draft[1:], strict=True))
    assert all(layer.ranks.shape[1] == routed.info.n_expert for layer in draft)


def test_as_many_draft_experts_as_the_model_has_change_nothing(routed: Session, passage: str) -> None:
    rows, used = prompt_of(routed, passage, 40)[:3], routed.info.n_expert_used
    for mine, theirs in zip(routing_of(routed, rows, used), routing_of(routed, rows, 0), strict=True):
        assert np.array_equal(mine.logits, theirs.logits)
    more = routing_of(routed, rows, 99)
    assert {layer.n_used for layer in more} == {used}


def test_a_wide_pass_reads_out_all_rows(routed: Session, passage: str) -> None:
    """The last layer computes only rows that are asked for their logits, here one."""
    routed.decode(prompt_of(routed, passage, 200), 0, all_logits=False)
    *layers, last = routed.hooks.routing()
    routed.rewind(0)
    assert {layer.logits.shape[0] for layer in layers} == {200}
    assert last.logits.shape[0] == 1


def test_nothing_is_kept_unless_asked_for(session: Session, passage: str) -> None:
    session.decode(prompt_of(session, passage, 40)[:2], 0, all_logits=True)
    assert session.hooks.routing() == []
    session.rewind(0)
