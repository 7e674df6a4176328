"""`bench quality`: readings that do not lean are plain decode, those that do reuse more; figures and bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES, USED, write_family
from toys import load

from engine.bench import main
from engine.bench.quality import figures
from engine.bench.quality_score import Reading, Sums, claims_of, log_softmax
from engine.bench.quality_text import Document, cut_to, documents
from engine.logprobs import logits_of
from engine.reuse import Reuse
from engine.session import Session

BLOCK = 8


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("quality") / "olmoe.gguf", FAMILIES["olmoe"])


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[Session]:
    with load(path, n_ctx=2048) as session:
        yield session


@pytest.fixture
def document(session: Session) -> Document:
    tokens = session.dialogue.tokenize_text(
        "The keeper counted the stairs as she climbed, and so did he, a hundred of them"
    )
    return Document(tokens[:53], 12)  # 40 positions


def test_without_a_bias_a_reading_is_plain_decode(session: Session, document: Document) -> None:
    reading = Reading(session, document, BLOCK)
    for block in (2, 4, 8):
        sums = reading.score(block, Reuse(USED, 0.0), draft_experts=1)
        assert sums.positions == document.positions == 40
        assert (sums.kl, sums.dp_squared, sums.nll - sums.nll_plain) == (0, 0, 0)
        assert sums.same_top == 40
        assert sums.reuse == sums.reuse_plain
    assert sums.nll_plain == pytest.approx(one_by_one(session, document), rel=1e-6)


def one_by_one(session: Session, document: Document) -> float:
    """What plain decode finds, a token at a time: minus the sum of logarithmic probabilities."""
    session.rewind(0)
    session.extend(document.tokens[: document.start], all_logits=False)
    total = 0.0
    for token, following in zip(
        document.tokens[document.start :], document.tokens[document.start + 1 :], strict=False
    ):
        session.extend([token], all_logits=True)
        total -= float(log_softmax(logits_of(session.context, 0, len(session.vocab))[None])[0, following])
    return total


def test_a_strong_bias_leaves_the_root_and_the_preferred(session: Session, document: Document) -> None:
    scores = Reading(session, document, BLOCK).score(BLOCK, Reuse(USED, 100.0), draft_experts=1).scores()
    assert scores.reuse <= 2 * USED / (USED * BLOCK)
    assert scores.reuse < scores.reuse_plain <= 1
    assert scores.mean_kl > 0
    assert scores.rms_dp > 0
    assert scores.top1 < 1


def test_a_pass_of_drafts_claims_what_steps_would(session: Session, document: Document) -> None:
    rows, at = document.tokens[:BLOCK], 0
    session.rewind(0)
    together = claims_of(session, rows, at, 2)
    with session.drafting(2, from_memory=False):
        apart = []
        for i, following in enumerate(rows[1:]):
            session.decode(rows[i : i + 1], at + i, all_logits=True)
            apart.append(session.hooks.token_probability(0, following))
        session.rewind(0)
    assert together == apart
    assert together != claims_of(session, rows, at, 1)
    assert len(session.timeline) == 0


def test_log_softmax_of_large_numbers() -> None:
    logits = np.random.default_rng(3).normal(300, 40, (3, 50_000)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.logaddexp.reduce(exact, axis=1, keepdims=True)
    assert np.allclose(log_softmax(logits), exact, atol=1e-4)


def test_documents_are_cut_to_whole_passes() -> None:
    source = [Document(tuple(range(length)), 3) for length in (15, 9, 40)]
    assert [document.positions for document in cut_to(source, 30, 8)] == [8, 24]
    assert list(cut_to(source, 0, 8)) == []
    assert source[0].cut(8).tokens == tuple(range(12))


def test_prose_is_ours_and_begins_each_piece_alike(session: Session) -> None:
    pieces = list(documents(session, "prose", 600, 8))
    assert sum(piece.positions for piece in pieces) == 600
    assert {(piece.start, piece.tokens[0]) for piece in pieces} == {(1, session.vocab.bos)}
    assert (
        "".join(map(session.vocab.text, [piece.tokens[1:] for piece in pieces]))
        .lstrip()
        .startswith("The lighthouse")
    )


def test_means_and_bars() -> None:
    sums = Sums(
        positions=4, kl=0.2, dp_squared=0.01, same_top=3, nll=4.04, nll_plain=4, reuse=1.48, reuse_plain=2
    )
    sums.add(
        Sums(
            positions=4, kl=0.0, dp_squared=0.03, same_top=4, nll=4.0, nll_plain=4, reuse=1.48, reuse_plain=2
        )
    )
    scores = sums.scores()
    assert scores.ppl == pytest.approx(np.e)
    assert (scores.mean_kl, scores.top1) == (pytest.approx(0.025), 7 / 8)
    assert scores.rms_dp == pytest.approx(np.sqrt(0.005))
    assert scores.ppl_ratio == pytest.approx(np.exp(0.005))
    assert scores.reuse_change == pytest.approx(-0.26)
    assert figures(scores)["held"] == ["reuse", "ppl"]


def rows_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main(["quality", "-t", "1", *argv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_row_for_each_setting(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Bread needs four things: flour, water, salt and time. " * 2)
    argv = ("-m", str(path), "--text", str(text), "--positions", "48", "--beta", "0.5,2", "--cap", "5")
    rows = rows_of(capsys, *argv)
    assert [(row["block"], row["cap"], row["beta"]) for row in rows] == [
        (4, 5, 0.5),
        (4, 5, 2.0),
        (8, 5, 0.5),
        (8, 5, 2.0),
    ]
    assert {row["positions"] for row in rows} == {48}
    assert len({row["ppl"] for row in rows}) == 1
    assert main(["quality", "-t", "1", *argv]) == 0
    assert "reuse down by 26%" in capsys.readouterr().out


def test_questions_are_answered_in_both_modes(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    items = tmp_path / "items.jsonl"
    lines = [
        {"question": "Hi", "kind": "any", "accept": ".", "tokens": 12},
        {"question": "Hi", "kind": "none", "accept": "(?!)", "tokens": 12},
    ]
    items.write_text("\n".join(map(json.dumps, lines)))
    any_, none, both = rows_of(capsys, "-m", str(path), "--tasks", str(items), "--cap", "4")
    assert (any_["ar"], any_["s2"], any_["points"]) == (100, 100, 0)
    assert (none["ar"], none["s2"]) == (0, 0)
    assert (both["kind"], both["items"], both["ar"], both["lost"], both["won"]) == ("all", 2, 50, 0, 0)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--cap", "3"], "--cap is 3 (4 to 16)"),
        (["--draft-experts", "5"], "--draft-experts is 5 (1 to 4)"),
        (["--block", "1,4"], "--block is 1 (2 to 32)"),
        (["--beta", "-1"], "'-1' is no number from 0 to 100"),
        (["--text", "/nowhere"], "/nowhere cannot be read"),
        (["--tasks", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_wrong_flags_are_usage_errors(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["quality", "-t", "1", "-m", str(path), *argv])
    assert left.value.code == 2
    assert said in capsys.readouterr().err
