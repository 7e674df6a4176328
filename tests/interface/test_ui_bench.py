"""`s2chat bench ui` in small: does it measure what it says? How fast things are depends on the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app import cli
from app.bench import measures, prose


def test_it_prints_every_measure_with_its_bar(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "ui", "--json", "--tokens", "600", "--rate", "100", "--messages", "80", "-r", "1"]
    assert cli.main(words) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["measure"], row["bar"]) for row in rows] == [
        ("start_s", 1.0),
        ("key_p95_ms", 100.0),
        ("memory_mb", 200.0),
        ("open_s", 1.0),
    ]
    for row in rows:
        assert row["pass"] == (row["value"] < row["bar"])
    assert rows[2]["value"] > 20  # an interpreter with the interface in it: the right process was looked at


def test_keys_are_seen_in_storms_and_the_text_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_STORM_EVERY_S", 0.5)
    tokens = prose.tokens(3000)
    text = "".join(tokens)
    assert text.count("```") >= 2
    assert "|---|" in text
    keys, _ = measures.streaming(tmp_path, tokens, 600.0, 1)
    assert keys.more["keys"] > 10
    assert keys.more["p95_in_storms"] > 0
    assert keys.more["text_kept"]


def test_an_interface_that_leaves_is_no_measure(tmp_path: Path) -> None:
    def leave() -> None:
        with measures.interface(tmp_path) as ui:
            ui.wait_for("Enter sends", 60.0)
            ui.type("\x11")
            ui.wait_for("never shown", 60.0)

    with pytest.raises(measures.MeasureError, match="left its terminal"):
        leave()
