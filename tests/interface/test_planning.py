"""`s2chat plan`, `models info` and the doctor's bundle, as a person and a program read them."""

from __future__ import annotations

import json
import platform
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app import exits, privacy
from app.cli import main
from app.privacy import hide, hide_in
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = exits.OK) -> str:
    assert main(words) == code
    return capsys.readouterr().out


def plan(capsys: pytest.CaptureFixture[str], *words: str, code: int = exits.OK) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, "plan", "--json", *words, code=code))
    return found


def test_every_number_of_a_plan_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--device", "orin-nano-8gb", "-m", "qwen3-30b-a3b")
    assert 5 << 30 < found["budget_bytes"] < 6 << 30
    assert found["limited"] is True
    assert "not measured" in found["device"]["made_from"]
    numbers = found["numbers"]
    assert numbers["budget_bytes"]["value"] == found["budget_bytes"]
    for name in (
        "n_ctx",
        "n_threads",
        "gpu_layers",
        "draft_experts",
        "cap",
        "hit",
        "tokens_per_s",
        "prefill_s",
    ):
        assert numbers[name]["value"] is not None
    assert all(number["reason"] for number in numbers.values())
    assert found["runs_well"] is True
    suits = {row["name"]: row["suits"] for row in found["known_models"]}
    assert suits["olmoe-1b-7b"] == "in memory"
    assert suits["gpt-oss-20b"] == "from disk"
    assert suits["deepseek-v3"] == "too large"


def test_wishes_change_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "laptop-16gb", "-m", "olmoe-1b-7b:Q8_0")
    found = plan(capsys, *words, "--budget", "3G", "-c", "2048", "--draft-experts", "4")
    assert found["budget_bytes"] == 3 << 30
    assert found["numbers"]["n_ctx"]["value"] == 2048
    assert found["numbers"]["draft_experts"] == {"value": 4, "unit": "experts", "reason": "asked for"}


def test_what_does_not_run_says_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--device", "laptop-8gb", "-m", "deepseek-v3", code=exits.ERROR)
    assert found["runs_well"] is False
    assert "more of free memory" in found["obstacle"]


def test_the_plan_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "plan")
    assert text.startswith(f"{read_model_info(EMBEDDED_MODEL).name} on ")
    for words in ("budget", "tok/s", "Known models on this device", "gpt-oss-120b"):
        assert words in text


def test_about_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "models", "info", "gpt-oss-20b", "--device", "rtx-4090-desktop")
    assert "experts per token          4" in text
    assert "on Desktop with RTX 4090" in text
    found = json.loads(said(capsys, "models", "info", "--json", "--device", "thor"))
    info = read_model_info(EMBEDDED_MODEL)
    numbers = (info.n_expert, info.n_expert_used, info.n_layer, info.n_weights)
    assert tuple(found[name] for name in ("experts", "experts_per_token", "layers", "weights")) == numbers
    assert found["plan"]["budget_bytes"] > 0


def test_names_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--device", "jetson-2000"]) == exits.USAGE
    assert "orin-nano-8gb" in capsys.readouterr().err
    assert main(["plan", "--device", "thor", "-m", "gpt-9"]) == exits.MODEL
    assert "qwen3-30b-a3b" in capsys.readouterr().err


def test_the_bundle_has_all_but_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S2CHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SSH_CONNECTION", "203.0.113.77 50000 203.0.113.1 22")
    monkeypatch.setattr(platform, "node", lambda: "annas-board")
    monkeypatch.setattr(privacy, "_user", lambda: "anna-k")
    log = tmp_path / "home/state/engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("loaded /data/anna-k/models/x.gguf on annas-board\n")
    place = tmp_path / "for-you.zip"
    text = said(capsys, "doctor", "--bundle", str(place))
    assert "memory.available" in text
    assert "[/proc/meminfo]" in text
    assert place.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(place) as bundle:
        files = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert json.loads(files["doctor.json"])["probes"]["memory.total"]["source"] == "/proc/meminfo"
    assert "MemTotal" in files["machine/files.txt"]
    assert "lsblk" in files["machine/commands.txt"]
    assert files["engine-log.txt"] == "loaded /data/USER/models/x.gguf on HOST\n"
    whole = text + "".join(files.values())
    for private in ("anna-k", "annas-board", "203.0.113"):
        assert private not in whole
    assert main(["doctor", "--bundle", str(place)]) == exits.ERROR
    assert "is there already" in capsys.readouterr().err


def test_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "_user", lambda: "anna")
    monkeypatch.setattr(platform, "node", lambda: "tx")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/anna"))
    for text, hidden in {
        "/home/anna/models/a.gguf": "~/models/a.gguf",
        "/home/annabel/a": "/home/annabel/a",
        "/media/anna/disk, annals": "/media/USER/disk, annals",
        "Serial Number : 1420042": "Serial Number : (hidden)",
        "serial-number=X1-77": "serial-number=(hidden)",
        "GPU UUID: GPU-12345678-1234-1234-1234-123456789abc": "GPU UUID: GPU-(hidden)",
        "eth0 48:b0:2d:11:22:33 10.1.2.3": "eth0 (hidden) (hidden)",
        "driver 570.86.15, tx 4, R36.4.3": "driver 570.86.15, tx 4, R36.4.3",
    }.items():
        assert hide(text) == hidden
    assert hide_in({"at": ["/home/anna", 3, None]}) == {"at": ["~", 3, None]}
