"""The settings file: read with every fault named, changed without losing a comment."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from app import exits
from app.cli import main
from app.setting import SETTINGS, parse_words, words_of
from app.settings import change, read_settings, template
from engine.errors import BadRequest, S2Error

MINE = """\
# my own words
theme = "nord"   # dark room

[sampling]
# mild
temperature = 0.4
  top_k=30

[models]
folders = [
  "/data/models",  # the big disk
  "~/gguf",
]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(MINE)
    return path


def test_what_is_set_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = read_settings(file)
    assert settings.get("theme") == "nord"
    assert settings.folders == (Path("/data/models"), Path("/home/me/gguf"))
    asked = Namespace(temperature=None, top_k=7, mode=None, model=None)
    settings.fill(asked)
    assert asked == Namespace(temperature=0.4, top_k=7, mode=None, model=None)  # the command line is stronger


def test_no_file_is_no_settings(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "none.toml")
    assert (settings.values, settings.warnings) == ({}, ())
    assert not (tmp_path / "none.toml").exists()


def test_the_file_that_is_made_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(template())
    assert read_settings(path).values == {}
    plain = "".join(
        line.removeprefix("# ") for line in template().splitlines(True) if " = " in line or line[0] == "["
    )
    path.write_text(plain)
    settings = read_settings(path)  # and what it shows as defaults is what they are
    assert settings.warnings == ()
    assert set(settings.values) == {
        *("theme", "engine.cache_type"),
        *(f"sampling.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")),
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('[sampling]\ntemperature = "hot"', ("line 2", "sampling.temperature", "0 to 100")),
        ("[sampling]\n\ntop_k = 1.5", ("line 3", "sampling.top_k", "whole number")),
        ('[engine]\nbudget = "12 apples"', ("line 2", "engine.budget", "3G")),
        ("[engine]\ncontext = 3", ("line 2", "engine.context", "64")),
        ("[engine]\ncontext = true", ("line 2", "engine.context", "64")),
        ('mode = "warp"', ("line 1", "mode", "s2-exact")),
        ('[models]\nfolders = "here"', ("line 2", "models.folders", "list")),
        ('[models]\ndownloads = "here"', ("line 2", "models.downloads", "full path")),
        ("sampling.top_p = 2", ("line 1", "sampling.top_p", "0 to 1")),
        ("theme = 3", ("line 1", "theme", "text")),
        ('theme = "dark', ("line 1",)),
        ("\n\n= 3", ("line 3",)),
        ('theme = "a"\ntheme = "b"', ("theme",)),
        ("sampling = 3", ("line 1", "ignored")),
    ],
)
def test_a_fault_is_named_with_line_and_key(file: Path, line: str, said: tuple[str, ...]) -> None:
    file.write_text(line + "\n")
    if "ignored" in said:
        found = read_settings(file).warnings[0]
    else:
        with pytest.raises(BadRequest) as caught:
            read_settings(file)
        found = caught.value.line()
    for words in (str(file), *said):
        assert words in found


def test_every_fault_is_named_and_an_unknown_key_is_a_warning(file: Path) -> None:
    file.write_text('colour = "red"\n[sampling]\nmin_p = 9\ntop_p = "x"\n[other]\nx = 1\n')
    with pytest.raises(BadRequest, match=r"(?s)line 3: sampling.min_p.*line 4: sampling.top_p"):
        read_settings(file)
    file.write_text('colour = "red"\n[other]\nx = 1\n')
    warnings = read_settings(file).warnings
    assert len(warnings) == 2
    assert "line 1: colour" in warnings[0]
    assert "line 3: other.x" in warnings[1]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * (2 << 20)])
def test_what_is_no_settings_file_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BadRequest, match=r"settings.toml"):
        read_settings(file)
    with pytest.raises(BadRequest):
        change(read_settings(None).__class__(file), "theme", "dark")
    assert file.read_bytes() == content  # and never written over


def test_a_change_keeps_all_else(file: Path) -> None:
    settings = change(read_settings(file), "sampling.temperature", 0.9)
    assert file.read_text() == MINE.replace("0.4", "0.9")
    settings = change(settings, "models.folders", ["/data/models", "/other"])
    settings = change(settings, "engine.budget", "3G")
    settings = change(settings, "mode", "s2-exact")
    text = file.read_text()
    for comment in ("# my own words", "# dark room", "# mild"):
        assert comment in text
    assert settings.get("engine.budget") == 3 << 30
    assert settings.get("mode") == "s2-exact"
    assert settings.folders == (Path("/data/models"), Path("/other"))
    settings = change(settings, "sampling.temperature", None)
    assert "# temperature = 0.8" in file.read_text()
    assert settings.get("sampling.temperature") is None
    assert change(settings, "models.folders", None).folders == ()


def test_every_setting_can_be_set_in_the_file_that_is_made(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "deep" / "settings.toml")
    words = {"theme": "light", "mode": "ar", "engine.budget": "25%", "engine.context": "4096"}
    words |= {"server.url": "https://host.example/v1", "server.key_file": "~/key"}
    words |= {"engine.cache_type": "q8_0", "models.start": "/m.gguf", "models.folders": "/a, /b"}
    for setting in SETTINGS:
        value = parse_words(
            setting, words.get(setting.key, "/x" if setting.key == "models.downloads" else "1")
        )
        settings = change(settings, setting.key, value)
        assert settings.get(setting.key) is not None
        assert words_of(settings.get(setting.key))
    text = (tmp_path / "deep" / "settings.toml").read_text()
    assert text.count("\n# ") >= len(SETTINGS)  # the explanations
    assert not [line for line in text.splitlines() if line.startswith("# ") and " = " in line]
    for setting in SETTINGS:
        settings = change(settings, setting.key, None)
    assert (tmp_path / "deep" / "settings.toml").read_text() == template()


def test_a_wrong_change_changes_nothing(file: Path) -> None:
    with pytest.raises(BadRequest):
        change(read_settings(file), "sampling.temperature", -1)
    assert file.read_text() == MINE
    file.unlink()
    file.mkdir()
    with pytest.raises(S2Error, match=r"settings.toml"):
        change(read_settings(None).__class__(file), "theme", "dark")


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    file.chmod(0o600)
    change(read_settings(link), "theme", "light")
    assert link.is_symlink()
    assert 'theme = "light"   # dark room' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_command_line_says_what_is_wrong(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("S2CHAT_HOME", str(home))
    (home / "settings.toml").write_text("[sampling]\ntemperature = 1000\n")
    assert main(["run", "-p", "Hi"]) == exits.USAGE
    said = capsys.readouterr().err
    assert "line 2: sampling.temperature" in said
    assert "Traceback" not in said


def test_a_line_never_lands_inside_another_value(file: Path) -> None:
    file.write_text('# top\nmine = [\n  "a",\n]\n\n[engine]\nbudget = "3G"\n')
    settings = change(read_settings(file), "mode", "ar")
    settings = change(settings, "engine.context", 4096)
    assert (settings.get("mode"), settings.get("engine.context")) == ("ar", 4096)
    assert file.read_text().startswith('# top\nmine = [\n  "a",\n]\n')
    assert len(settings.warnings) == 1
