"""Downloads against a server that speaks the hub's API: resumed, verified, refused, paused."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubserver import Hub, serving
from support import until
from toys import write_llama

from app import exits, fetch
from app.cli import main
from app.fetch import DiskFull, Fetch, Mismatch, leftovers, remove
from app.hub import Offer, RemoteFile, look_up, parse_name
from app.inventory import all_places
from app.places import candidates
from engine.errors import BadRequest, Busy, Cancelled, S2Error

MIB = 1 << 20
NAME = "owner/model-GGUF"
DATA = random.Random(3).randbytes(3 * MIB)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token of this machine, no cache, no waiting."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(fetch, "_WAIT_S", 0.01)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as hub:
        hub.files = {"m-Q4_K_M.gguf": DATA}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


def quiet(*_: object) -> None:
    pass


def get(folder: Path, name: str = NAME) -> Path:
    return Fetch(look_up(name), folder, quiet).run()


def part_of(folder: Path, data: bytes, name: str = "m-Q4_K_M.gguf") -> Path:
    part = folder / NAME / f"{name}.{hashlib.sha256(data).hexdigest()[:16]}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    return part


def in_picker(folder: Path) -> list[Path]:
    return [found.path for found in candidates(all_places(folder)) if folder in found.path.parents]


def test_a_model_is_fetched_and_not_twice(hub: Hub, folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = Fetch(look_up(NAME), folder, lambda *step: seen.append(step)).run()
    assert path == folder / NAME / "m-Q4_K_M.gguf"
    assert path.read_bytes() == DATA
    assert in_picker(folder) == [path]
    assert ("fetching", len(DATA), len(DATA)) in seen
    assert seen[-1] == ("verifying m-Q4_K_M.gguf", len(DATA), len(DATA))
    assert get(folder) == path
    assert hub.asked == [("m-Q4_K_M.gguf", "")]
    assert leftovers(folder) == []


def test_a_part_that_is_whole_is_only_verified(hub: Hub, folder: Path) -> None:
    part_of(folder, DATA).write_bytes(DATA)
    assert get(folder).read_bytes() == DATA
    assert hub.asked == []


def test_what_changed_at_the_hub_starts_over(hub: Hub, folder: Path) -> None:
    old = part_of(folder, b"what it was")
    old.write_bytes(DATA[:MIB])
    assert get(folder).read_bytes() == DATA
    assert hub.asked == [("m-Q4_K_M.gguf", "")]
    assert not old.exists()


@pytest.mark.usefixtures("hub")
def test_a_finished_model_that_changed_is_fetched_anew(folder: Path) -> None:
    path = folder / NAME / "m-Q4_K_M.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA[::-1])
    assert get(folder).read_bytes() == DATA


def test_a_server_that_ignores_the_range_starts_over(hub: Hub, folder: Path) -> None:
    hub.ranges = False
    part_of(folder, DATA).write_bytes(b"\0" * MIB)
    assert get(folder).read_bytes() == DATA
    assert hub.asked == [("m-Q4_K_M.gguf", f"bytes={MIB}-")]


def test_a_connection_that_keeps_breaking_goes_on(hub: Hub, folder: Path) -> None:
    hub.drop_every = MIB // 2
    assert get(folder).read_bytes() == DATA
    ranges = [wish for _, wish in hub.asked]
    assert ranges[0] == ""
    assert len(ranges) >= 6
    begins = [int(wish.removeprefix("bytes=").rstrip("-")) for wish in ranges[1:]]
    assert begins == sorted(set(begins))  # always further


def test_one_wrong_byte_is_found(hub: Hub, folder: Path) -> None:
    hub.promised = {"m-Q4_K_M.gguf": DATA}
    wrong = bytearray(DATA)
    wrong[MIB] ^= 1
    hub.files["m-Q4_K_M.gguf"] = bytes(wrong)
    with pytest.raises(Mismatch) as caught:
        get(folder)
    for digest in (DATA, bytes(wrong)):
        assert hashlib.sha256(digest).hexdigest() in caught.value.message
    assert in_picker(folder) == []
    assert leftovers(folder) == []
    assert len(hub.asked) == 1


@pytest.mark.parametrize("body", [b"", DATA[:1000], DATA + b"more"])
def test_a_body_of_another_length_ends(hub: Hub, folder: Path, body: bytes) -> None:
    hub.body = body
    with pytest.raises(S2Error, match="another length"):
        get(folder)
    assert in_picker(folder) == []
    assert len(hub.asked) <= 12


@pytest.mark.usefixtures("hub")
def test_a_part_that_is_too_long_starts_over(folder: Path) -> None:
    part_of(folder, DATA).write_bytes(DATA + b"more")
    assert get(folder).read_bytes() == DATA


@pytest.mark.parametrize(("status", "said"), [(503, "broke"), (403, "403")])
def test_an_error_of_the_store_is_said(hub: Hub, folder: Path, status: int, said: str) -> None:
    hub.status = status
    with pytest.raises(S2Error, match=said):
        get(folder)
    assert len(hub.asked) <= 6


def test_stopped_it_goes_on_from_there(hub: Hub, folder: Path) -> None:
    hub.pause_s = 0.02
    offer = look_up(NAME)
    enough = threading.Event()
    going = Fetch(offer, folder, lambda _, done, __: done > MIB and enough.set())
    stopped: list[BaseException] = []

    def run() -> None:
        try:
            going.run()
        except Cancelled as error:
            stopped.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert enough.wait(30)
    with pytest.raises(Busy, match="another program"):
        Fetch(offer, folder, quiet).run()
    started = time.monotonic()
    going.cancel()
    thread.join(20)
    assert time.monotonic() - started < 10
    assert stopped
    (left,) = leftovers(folder)
    assert (left.name, left.size >= MIB) == (f"{NAME}:m-Q4_K_M.gguf", True)
    hub.pause_s = 0
    assert get(folder, left.name).read_bytes() == DATA
    assert hub.asked[-1][1] == f"bytes={left.size}-"


def test_leftovers_are_removed(hub: Hub, folder: Path) -> None:
    assert hub.files
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        part_of(folder, DATA, name).write_bytes(DATA[:MIB])
    (left,) = leftovers(folder)
    assert left.size == 2 * MIB
    remove(left)
    assert leftovers(folder) == []
    assert in_picker(folder) == []


def test_a_set_comes_whole_or_not_at_all(hub: Hub, folder: Path, tmp_path: Path) -> None:
    write_llama(tmp_path / "toy.gguf", tensors_per_file=7)
    files = sorted(tmp_path.glob("toy-*.gguf"))
    hub.files = {f"Q8_0/{file.name}": file.read_bytes() for file in files}
    hub.files["Q4_0/other-Q4_0.gguf"] = b"x"
    last = f"Q8_0/{files[-1].name}"
    hub.promised = {last: hub.files[last]}
    hub.files[last] = hub.files[last][:-1] + b"?"
    with pytest.raises(Mismatch):
        get(folder, f"{NAME}:Q8_0")
    assert in_picker(folder) == []
    hub.files[last] = hub.promised[last]
    asked = len(hub.asked)
    path = get(folder, f"{NAME}:{last}")
    assert path.name == files[0].name
    assert in_picker(folder) == [path]
    assert [name for name, _ in hub.asked[asked:]] == [last]  # the others were there


def test_there_must_be_room_for_the_whole_set(hub: Hub, folder: Path) -> None:
    far = shutil.disk_usage("/").total
    offer = Offer(
        NAME, "0" * 40, tuple(RemoteFile(f"m-0000{n}-of-00002.gguf", far * 2 // 3, "0" * 64) for n in (1, 2))
    )
    with pytest.raises(DiskFull, match=r"still to come, .* are free"):
        Fetch(offer, folder, quiet).run()
    assert hub.asked == []


FULL = """
import os, sys, threading
from pathlib import Path
from app.fetch import DiskFull, Fetch, leftovers
from app.hub import look_up
folder = Path(sys.argv[1])
filler = folder / "filler"
def report(what, done, whole):
    if done > 1 << 20 and not filler.exists():
        free = os.statvfs(folder)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - (1 << 20)))
try:
    Fetch(look_up("owner/model-GGUF"), folder, report).run()
except DiskFull as error:
    print(error.line())
print([left.size > 1 << 20 for left in leftovers(folder)])
filler.unlink()
print(Fetch(look_up("owner/model-GGUF"), folder, lambda *_: None).run().stat().st_size)
"""


def test_a_disk_that_fills_up_pauses_it(hub: Hub, tmp_path: Path) -> None:
    """On a real disk of 8 MiB, in a mount namespace of its own."""
    (tmp_path / "disk").mkdir()
    inside = f'mount -t tmpfs -o size=8m none "{tmp_path}/disk" && exec "$@"'
    namespace = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c", inside, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, "true"], capture_output=True).returncode
    ):
        pytest.skip("no mounts here")
    done = subprocess.run(
        [*namespace, sys.executable, "-c", FULL, str(tmp_path / "disk")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    said, left, size = done.stdout.splitlines()
    assert "paused, the disk is full" in said
    assert "goes on from there" in said
    assert left == "[True]"
    assert int(size) == len(DATA)
    assert hub.asked[-1][1].startswith("bytes=")


# --- names


@pytest.mark.parametrize(
    ("words", "repo", "what"),
    [
        ("owner/name", "owner/name", ""),
        ("owner/name:Q4_K_M", "owner/name", "Q4_K_M"),
        ("https://huggingface.co/owner/name", "owner/name", ""),
        ("hf.co/owner/name:sub/file.gguf", "owner/name", "sub/file.gguf"),
    ],
)
def test_names_that_are_understood(words: str, repo: str, what: str) -> None:
    assert parse_name(words) == (repo, what)


@pytest.mark.parametrize("words", ["", "name", "a/b/c", "../..", "a/..", "https://example.org/a/b", "a b/c"])
def test_names_that_are_none(words: str) -> None:
    with pytest.raises(BadRequest, match="no name of a repository"):
        parse_name(words)


def test_which_of_several_models(hub: Hub) -> None:
    hub.files = dict.fromkeys(("m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m.gguf"), b"GGUF")
    hub.files |= {"../up.gguf": b"GGUF", "/etc/x.gguf": b"GGUF", ".hidden/x.gguf": b"GGUF"}
    assert look_up(NAME).files[0].name == "m-Q4_K_M.gguf"
    assert look_up(f"{NAME}:q8_0").files[0].name == "m-Q8_0.gguf"
    for words, said in (
        (f"{NAME}:Q5_0", "no 'Q5_0'"),
        (f"{NAME}:mmproj-m.gguf", "no 'mmproj"),
        (f"{NAME}:../up.gguf", "no '"),
    ):
        with pytest.raises(BadRequest, match=said) as caught:
            look_up(words)
        assert "m-Q8_0.gguf" in caught.value.message
        assert "up.gguf (" not in caught.value.message
    hub.files.pop("m-Q4_K_M.gguf")
    with pytest.raises(BadRequest, match="several models"):
        look_up(NAME)
    with pytest.raises(BadRequest, match="no nobody/nothing"):
        look_up("nobody/nothing")


def test_without_a_network_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(S2Error, match="offline"):
        look_up(NAME)


# --- the command


def test_the_command_fetches_and_says_how_to_use_it(
    hub: Hub, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("S2CHAT_HOME", str(home))
    hub.files = {"toy.gguf": write_llama(tmp_path / "toy.gguf").read_bytes()}
    assert main(["models", "get", NAME]) == exits.OK
    path = home / "data" / "models" / NAME / "toy.gguf"
    assert f"s2chat -m {path}" in capsys.readouterr().out
    assert main(["models"]) == exits.OK
    assert str(path) in capsys.readouterr().out
    part_of(home / "data" / "models", DATA).write_bytes(DATA[:MIB])
    assert main(["models"]) == exits.OK
    assert f"unfinished: {NAME}:m-Q4_K_M.gguf, 1 MiB" in capsys.readouterr().out
    assert main(["models", "forget"]) == exits.OK
    assert leftovers(home / "data" / "models") == []
    assert path.exists()
    assert main(["models", "get", "nonsense"]) == exits.USAGE


def test_ctrl_c_keeps_what_is_there(hub: Hub, home: Path) -> None:
    hub.pause_s = 0.05
    environment = {**os.environ, "S2CHAT_HOME": str(home)}
    run = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "models", "get", NAME],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    until(lambda: any(left.size > MIB // 2 for left in leftovers(home / "data" / "models")))
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == exits.CANCELLED
    assert "goes on from there" in said
    assert "Traceback" not in said
    assert leftovers(home / "data" / "models")


def test_nothing_of_it_is_imported_for_a_chat() -> None:
    code = (
        "import sys, app.chat, app.open; print({'huggingface_hub', 'httpx2', 'tomlkit'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr
