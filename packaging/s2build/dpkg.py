"""dpkg on file trees that are not this machine's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from s2build.children import must
from s2build.trial import without_network

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
_DATABASE = ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log")
# Its database knows no other package; that ours names the right ones is not shown here.
_ALONE = "--force-depends"


@dataclass(frozen=True)
class Dpkg:
    """`command` and what precedes the words of `do`."""

    command: tuple[str, ...]

    @classmethod
    def below(cls, root: Path) -> Dpkg:
        """A database and a file tree with nothing else in it; maintainer scripts see it as DPKG_ROOT."""
        for name in _DATABASE:
            (root / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        options = (f"--root={root}", f"--log={root}/var/log/dpkg.log", _ALONE, "--force-not-root")
        return cls((*without_network(), "dpkg", *options, "--force-script-chrootless"))

    @classmethod
    def inside(cls, entered: tuple[str, ...]) -> Dpkg:
        """That of an emulated machine; maintainer scripts see its files as /."""
        return cls((*entered, "dpkg", _ALONE))

    def do(self, *words: str | Path) -> None:
        must([*self.command, *words], _ENVIRONMENT)
