"""Libraries and services that hang, refuse, crash or know half: each asked for real, in its own process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.machine.feed import Feed
from engine.machine.helper import HelperError, ask
from engine.machine.jtop import feed_jtop, read_jtop
from engine.machine.live import Live
from engine.machine.nvml import feed_nvml, parse, read_nvml
from engine.machine.programs import ask_nvml as script
from engine.machine.reading import Reading

# A client that talks to its service as that of jetson-stats does: it blocks until it has the first answer.
CLIENT = """
import json, os, socket

class jtop:
    def __init__(self, interval=0.5):
        self.interval = interval
    def __enter__(self):
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.connect(os.environ["SERVICE"])
        self.lines = self.peer.makefile()
        self.take(self.lines.readline())
        return self
    def take(self, line):
        told = json.loads(line)
        if "raise" in told:
            raise RuntimeError(told["raise"])
        self.__dict__.update(told)
        self.nvpmodel = type("Mode", (), {"name": told["mode"]}) if told["mode"] else None
    def ok(self):
        self.peer.settimeout(3 * self.interval)
        line = self.lines.readline()
        if not line:
            raise RuntimeError("Lost connection with jtop server")
        self.take(line)
        return True
    def __exit__(self, *_):
        self.peer.close()
"""
TOLD = {
    "board": {"hardware": {"Model": "Jetson Orin Nano", "L4T": "36.4.3", "Serial Number": "1420042"}},
    "memory": {"RAM": {"tot": 7_802_048, "used": 2_000_000}},
    "power": {"tot": {"power": 6840}},
    "mode": "15W",
    "jetson_clocks": None,
    "gpu": {"gpu": {"status": {"load": 43.7}}},
    "temperature": {"cpu": {"temp": 51.2}, "gpu": {"temp": 49.0}},
}


@pytest.fixture
def client(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds the client."""
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / "jtop.py").write_text(CLIENT)
    return {**os.environ, "PYTHONPATH": str(folder), "SERVICE": str(tmp_path / "jtop.sock")}


@contextmanager
def service(place: Path, answer: dict[str, object] | None) -> Iterator[None]:
    """A socket that answers every caller again and again, or accepts and says nothing."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen()
    listener.settimeout(0.1)
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except TimeoutError:
                pass
            except OSError:
                return
            for peer in held if answer is not None else ():
                with suppress(OSError):
                    peer.sendall(json.dumps(answer).encode() + b"\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for peer in held:
            peer.close()
        place.unlink()


def values(client: dict[str, str], deadline_s: float = 60.0) -> dict[str, object]:
    found = read_jtop(
        socket=Path(client["SERVICE"]), python=sys.executable, environment=client, deadline_s=deadline_s
    )
    return {name: reading.value if reading.known else reading.error for name, reading in found.items()}


def test_jtop_answers(client: dict[str, str]) -> None:
    with service(Path(client["SERVICE"]), TOLD):
        found = values(client)
    assert found["jetson.model"] == "Jetson Orin Nano"
    assert (found["jetson.power_mode"], found["jetson.power_w"]) == ("15W", 6.84)
    assert (found["jetson.gpu_load"], found["jetson.temperature"]) == (43.7, 51.2)
    assert found["jetson.clocks_fixed"] is False
    assert str(found["jetson.module"]).startswith("not told"), "one figure that is missing costs no other"
    assert "1420042" not in repr(found)


def test_jtop_that_knows_half(client: dict[str, str]) -> None:
    with service(Path(client["SERVICE"]), {**TOLD, "mode": None, "gpu": {}}):
        found = values(client)
    assert str(found["jetson.power_mode"]).startswith("not told")
    assert str(found["jetson.gpu_load"]).startswith("not told")
    assert found["jetson.model"] == "Jetson Orin Nano"


def test_jtop_that_accepts_and_never_answers(client: dict[str, str]) -> None:
    with service(Path(client["SERVICE"]), None):
        started = time.monotonic()
        found = values(client, deadline_s=1.0)
        assert time.monotonic() - started < 5
    assert "no answer within 1 s" in str(found["jtop"])
    assert "systemctl restart jtop" in str(found["jtop"])


def test_jtop_absent_refused_and_back_again(client: dict[str, str]) -> None:
    place = Path(client["SERVICE"])
    started = time.monotonic()
    assert "does not run here" in str(values(client)["jtop"])
    assert time.monotonic() - started < 0.5, "nobody waits for what is not there"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(place))
    left.close()
    assert "Connection refused" in str(values(client)["jtop"])
    place.unlink()
    with service(place, TOLD):
        assert values(client)["jtop"] == "answers"


def test_jtop_of_another_version(client: dict[str, str]) -> None:
    words = "Mismatch version jtop service: [4.2] and client: [7.2]"
    with service(Path(client["SERVICE"]), {"raise": words}):
        assert values(client)["jtop"] == words


def test_jtop_that_is_not_for_us(client: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = Path(folder) / "jtop.sock"
        with service(place, TOLD):
            place.chmod(0o600 if os.geteuid() == 0 else 0)
            us = os.geteuid()
            if us == 0:  # whom no mode stops
                os.seteuid(65534)
            try:
                found = values({**client, "SERVICE": str(place)})
            finally:
                os.seteuid(us)
    assert "no permission" in str(found["jtop"])
    assert "sudo usermod -aG" in str(found["jtop"])


def test_something_else_where_the_socket_should_be(client: dict[str, str]) -> None:
    Path(client["SERVICE"]).write_text("")
    assert "is no socket" in str(values(client)["jtop"])


def test_the_agpl_never_gets_into_our_process() -> None:
    code = (
        "import sys, app.doctor, app.planning\n"
        "from engine.machine.inventory import slow\n"
        "slow()\n"
        "assert not {'jtop', 'pynvml'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


# --- what is told again and again


def after(live: Live, name: str, condition: Callable[[Reading], bool], seconds: float = 60.0) -> Reading:
    """What `live` says of `name` once `condition` holds of it."""
    deadline = time.monotonic() + seconds
    while not condition(reading := live.look()[name]):
        assert time.monotonic() < deadline, reading
        time.sleep(0.1)
    return reading


def is_new(reading: Reading) -> bool:
    return reading.known and not reading.stale


def is_stale(reading: Reading) -> bool:
    return reading.stale


def feed_of(client: dict[str, str]) -> Feed:
    return feed_jtop(0.2, socket=Path(client["SERVICE"]), python=sys.executable, environment=client)


def test_jtop_comes_goes_and_comes_back(client: dict[str, str], tmp_path: Path) -> None:
    place = Path(client["SERVICE"])
    live = Live(tmp_path / "root", feeds={"jtop": feed_of(client)})
    assert not live.look()["power"].known
    assert "does not run here" in live._silence("jtop").error
    with service(place, TOLD):
        assert after(live, "power", is_new).value == 6.84
        assert after(live, "temperature", is_new).value == 51.2
    gone = after(live, "power", is_stale)
    assert (gone.value, gone.source) == (6.84, "jtop")
    assert "s old: " in gone.error
    with service(place, {**TOLD, "power": {"tot": {"power": 9000}}}):
        assert after(live, "power", is_new).value == 9.0
    live.close()


def test_jtop_that_stops_answering_is_marked_and_asked_again(client: dict[str, str], tmp_path: Path) -> None:
    """Two services under one name, as after a restart: the first accepts nobody any more."""
    place = Path(client["SERVICE"])
    feed = feed_of(client)
    live = Live(tmp_path / "root", feeds={"jtop": feed})
    with service(place, TOLD):
        after(live, "power", is_new)
        child = feed._child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)  # as one that hangs: no answer, and no end
        stopped = time.monotonic()
        marked = after(live, "power", is_stale)
        assert "no answer" in marked.error or "nothing newer yet" in marked.error
        assert time.monotonic() - stopped < 5
        assert after(live, "power", is_new).value == 6.84
        assert feed._child is not None
        assert feed._child.pid != child.pid
        assert child.returncode == -signal.SIGKILL
    live.close()


def test_jtop_that_accepts_and_is_silent_holds_nothing_up(client: dict[str, str], tmp_path: Path) -> None:
    feed = feed_of(client)
    live = Live(tmp_path / "root", feeds={"jtop": feed})
    with service(Path(client["SERVICE"]), None):
        slowest = 0.0
        for _ in range(20):
            started = time.monotonic()
            live.look()
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.1)
        assert slowest < 0.5
        assert not live.look()["power"].known
        assert feed.error == "has not answered yet"
    live.close()
    assert feed._child is None


# --- any helper


def test_a_helper_and_its_children_are_gone_after_the_deadline(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '60'])\nopen({str(noted)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(HelperError, match="no answer within 2 s"):
        ask([sys.executable, "-c", code], 2.0)
    child = int(noted.read_text())
    for _ in range(50):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":  # dead, and nobody's child any more
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("a child of the helper lives on")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "ended by signal 6"),
        ("raise SystemExit('driver on fire')", "driver on fire"),
        ("print('no JSON')", "it said nothing"),
        ("print('[1]')", "it said nothing"),
        ("print('{}'); raise SystemExit(3)", "it said nothing"),
    ],
)
def test_helpers_that_fail(code: str, words: str) -> None:
    with pytest.raises(HelperError, match=words):
        ask([sys.executable, "-I", "-c", code], 60.0)


def test_a_helper_that_is_not_there() -> None:
    with pytest.raises(HelperError, match="cannot be started"):
        ask(["/nowhere/python"], 1.0)


# --- NVML: the real Python package over a driver library of our own

LIBRARY = r"""
#include <cstdlib>
#include <cstring>
#include <unistd.h>
static bool is(const char *mode) { const char *m = getenv("NVML_MODE"); return m && !strcmp(m, mode); }
struct memory { unsigned long long total, free, used; };
struct use { unsigned gpu, memory; };
extern "C" {
int nvmlInitWithFlags(unsigned) {
    if (is("crash")) abort();
    if (is("hang")) sleep(60);
    return is("mismatch") ? 18 : is("no driver") ? 9 : 0;
}
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : code == 9 ? "Driver Not Loaded" : "Not Supported";
}
int nvmlSystemGetDriverVersion(char *out, unsigned) { strcpy(out, "570.86.15"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = is("no gpu") ? 0 : 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **out) { *out = (void *) 1; return 0; }
int nvmlDeviceGetName(void *, char *out, unsigned) {
    strcpy(out, is("gb10") ? "NVIDIA GB10" : "RTX");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *, memory *out) {
    if (is("half") || is("gb10")) return 3;
    *out = {24ULL << 30, 20ULL << 30, 4ULL << 30};
    if (is("garbage")) out->total = ~0ULL;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *, use *out) { *out = {37, 5}; return is("half") ? 3 : 0; }
int nvmlDeviceGetMemoryBusWidth(void *, unsigned *out) { *out = 384; return 0; }
int nvmlDeviceGetMaxClockInfo(void *, int, unsigned *out) { *out = 10501; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *out) { *out = 0x24; return 0; }
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a library that stands where the driver's would."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "the native library was built with one"
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.cpp").write_text(LIBRARY)
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(folder / "nvml.cpp")], check=True)
    return folder


def nvml(driver: Path, mode: str, deadline_s: float = 60.0) -> dict[str, object]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "NVML_MODE": mode}
    found = read_nvml(environment=environment, deadline_s=deadline_s)
    return {name: reading.value if reading.known else reading.error for name, reading in found.items()}


def test_a_gpu_that_tells_all_it_is_asked(driver: Path) -> None:
    found = nvml(driver, "")
    assert (found["gpu.0.name"], found["gpu.0.load"]) == ("RTX", 37)
    assert (found["gpu.0.memory"], found["gpu.0.memory_free"]) == (24 << 30, 20 << 30)
    assert found["gpu.0.bandwidth"] == 1_008_096_000_000
    assert found["gpu.0.slowed"] == "power limit, heat"
    assert "Function Not Found" in str(found["gpu.0.power_w"]), "this driver has no such call"


def test_a_gpu_that_tells_half(driver: Path) -> None:
    found = nvml(driver, "half")
    assert found["gpu.0.name"] == "RTX"
    assert found["gpu.0.load"] == "Not Supported"
    assert found["gpu.0.memory"] == "Not Supported"
    assert found["gpu.0.bandwidth"] == 1_008_096_000_000


def test_memory_that_is_nonsense_or_shared_does_not_count(driver: Path) -> None:
    assert nvml(driver, "garbage")["gpu.0.memory"] == "no sensible figure"
    found = nvml(driver, "gb10")
    assert found["gpu.0.memory"] == "shares the machine's memory"
    assert found["gpu.0.shared"] is True


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("mismatch", "restart the machine"),
        ("no driver", "Driver Not Loaded"),
        ("crash", "ended by signal 6"),
        ("no gpu", "answers"),
    ],
)
def test_drivers_in_trouble(driver: Path, mode: str, words: str) -> None:
    found = nvml(driver, mode)
    assert words in str(found["nvml"])
    assert "gpu.0.name" not in found


def test_a_driver_that_hangs(driver: Path) -> None:
    assert "no answer within 1.5 s" in str(nvml(driver, "hang", deadline_s=1.5)["nvml"])


def test_no_driver_at_all(tmp_path: Path) -> None:
    found = nvml(tmp_path, "")
    if "gpu.0.name" not in found:  # a machine with a GPU has a driver of its own
        assert "the CPU is used" in str(found["nvml"])


def test_another_package_of_the_same_name(tmp_path: Path) -> None:
    """pynvml is the module of two packages; the older one knows fewer calls."""
    (tmp_path / "pynvml.py").write_text(
        "def nvmlInit(): pass\ndef nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(i): return i\ndef nvmlDeviceGetName(h): return b'Old \\xff'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = parse(ask([sys.executable, str(script.__file__)], 60.0, environment))
    assert found["gpu.0.name"].value == "Old \ufffd"
    assert "has no nvmlDeviceGetMemoryInfo" in found["gpu.0.memory"].error


def test_a_divided_gpu_counts_the_part() -> None:
    whole = {
        "name": {"value": "H100"},
        "mig": {"value": True},
        "memory": {"error": "Insufficient Permissions"},
    }
    part = {"name": {"value": "MIG"}, "memory": {"value": 10 << 30}, "memory_free": {"value": 9 << 30}}
    found = parse({"gpus": [{**whole, "parts": [part]}]})
    assert (found["gpu.0.memory"].value, found["gpu.0.memory_free"].value) == (10 << 30, 9 << 30)


def test_a_gpu_is_told_of_again_and_again(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    feed = feed_nvml(tmp_path, 0.2, environment={**os.environ, "LD_LIBRARY_PATH": str(driver)})
    live = Live(tmp_path, feeds={"nvml": feed})
    assert live.look()["gpu.load"].error == "no NVIDIA driver here"
    assert feed._child is None, "nothing is started where there is no driver"
    (tmp_path / "dev/nvidiactl").touch()
    assert after(live, "gpu.load", is_new).value == 37
    found = live.look()
    assert (found["gpu.used"].value, found["gpu.total"].value) == (4 << 30, 24 << 30)
    assert found["throttled"].value == "the GPU's power limit, heat"
    assert "Function Not Found" in found["gpu.power"].error
    child = feed._child
    assert child is not None
    child.kill()
    assert "ended by signal 9" in after(live, "gpu.load", is_stale).error
    assert after(live, "gpu.load", is_new).value == 37
    live.close()


@pytest.mark.parametrize(
    ("mode", "words"),
    [("crash", "ended by signal 6"), ("no driver", "Driver Not Loaded"), ("hang", "has not answered yet")],
)
def test_drivers_in_trouble_are_asked_more_rarely(
    driver: Path, tmp_path: Path, mode: str, words: str
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "NVML_MODE": mode}
    feed = feed_nvml(tmp_path, 0.2, environment=environment)
    live = Live(tmp_path, feeds={"nvml": feed})
    after(live, "gpu.load", lambda reading: words in reading.error)
    if mode != "hang":
        assert feed._child is None
        starts = 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            live.look()
            starts += feed._child is not None
            time.sleep(0.1)
        assert not starts, "two seconds pass before it is tried again"
    live.close()
    assert not (feed._left is not None and feed._left.poll() is None)
