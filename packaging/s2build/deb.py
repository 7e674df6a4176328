"""A package for Debian and Ubuntu around a wheelhouse; its own files lie in packaging/deb."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from email.utils import formatdate
from pathlib import Path

from s2build.children import run
from s2build.console import Step
from s2build.kernels import GLIBC
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY
from s2build.shipped import take_out_model
from s2build.wheelhouse import PYTHONS, s2chat_version

_FILES = REPOSITORY / "packaging/deb"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SCRIPTS = ("postinst", "prerm", "postrm")
_PLACES = {
    "s2chat.desktop": "usr/share/applications",
    "s2chat.svg": "usr/share/icons/hicolor/scalable/apps",
    "s2chat.service": "usr/lib/systemd/user",
}

_CHANGELOG = """s2chat ({version}) stable; urgency=medium

  * CHANGELOG.md beside this file says what changed.

 -- the s2chat authors <s2chat@localhost>  {date}
"""


def make_deb(wheelhouse: Path, folder: Path, machine: str, *, version: str = "") -> Path:
    """The package in `folder`, with the wheels of `wheelhouse`. `version`: another one, to test upgrades."""
    version = version or s2chat_version()
    target = folder / f"s2chat_{version}_{ARCHITECTURES[machine]}.deb"
    with Step(target.name), tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary) / "root"
        _fill(root, wheelhouse, version)
        _describe(root, version, machine)
        # What it holds is compressed already, so quickly. root owns it, whoever builds it.
        outcome = run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, target])
        if not outcome.ok:
            raise SetupError(f"cannot build {target.name}: {outcome.output.strip()}")
    return target


def _fill(root: Path, wheelhouse: Path, version: str) -> None:
    """The files as they will lie below /."""
    wheels = root / "usr/lib/s2chat/wheels"
    shutil.copytree(wheelhouse, wheels, copy_function=_link)
    _set_model_apart(wheels, root / "usr/share/s2chat")
    for name, place in _PLACES.items():
        _write(root / place / name, (_FILES / name).read_text())
    documents = root / "usr/share/doc/s2chat"
    licence = "".join(f" {line or '.'}\n" for line in (REPOSITORY / "LICENSE").read_text().splitlines()[4:])
    _write(documents / "copyright", (_FILES / "copyright").read_text().replace("@LICENSE@\n", licence))
    _write(documents / "THIRD_PARTY.md", (REPOSITORY / "packaging/THIRD_PARTY.md").read_text())
    _write(documents / "CHANGELOG.md", (REPOSITORY / "CHANGELOG.md").read_text())
    _write_gzip(documents / "changelog.gz", _CHANGELOG.format(version=version, date=formatdate()))
    manual = (_FILES / "s2chat.1").read_text().replace("@VERSION@", version)
    _write_gzip(root / "usr/share/man/man1/s2chat.1.gz", manual)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/s2chat").symlink_to("../lib/s2chat/venv/bin/s2chat")  # made by postinst


def _describe(root: Path, version: str, machine: str) -> None:
    """What dpkg reads."""
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    facts = {
        "VERSION": version,
        "ARCHITECTURE": ARCHITECTURES[machine],
        "KIB": f"{size >> 10}",
        "OLDEST": PYTHONS[0],
        "TOO_NEW": f"3.{int(PYTHONS[-1].split('.')[1]) + 1}",
        "GLIBC": ".".join(map(str, GLIBC)),
    }
    control = (_FILES / "control").read_text()
    for name, value in facts.items():
        control = control.replace(f"@{name}@", value)
    _write(root / "DEBIAN/control", control)
    _write(root / "DEBIAN/triggers", (_FILES / "triggers").read_text())
    for name in _SCRIPTS:
        _write(root / "DEBIAN" / name, (_FILES / name).read_text())
        (root / "DEBIAN" / name).chmod(0o755)


def _set_model_apart(wheels: Path, folder: Path) -> None:
    """postinst links the environment it makes to the files in `folder`."""
    (own,) = wheels.glob("s2chat-*.whl")
    thinner = own.with_suffix(".thinner")
    if not take_out_model(own, thinner, folder):
        raise SetupError(f"{own.name} holds no model")
    thinner.replace(own)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_gzip(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
