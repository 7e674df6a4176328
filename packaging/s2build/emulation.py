"""A machine of another architecture for a check: Debian's files for it, and an emulator that runs them.

Inside namespaces of its own a program believes to be there, with whatever it starts, and all of it ends with
it. Nothing is registered with this machine: since Linux 6.7 each user namespace says for itself what runs
foreign programs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from s2build.children import run
from s2build.console import Step
from s2build.kernels import features_of
from s2build.pip import last_line
from s2build.problem import SetupError

#: The oldest Debian whose glibc and Python we promise.
SUITE = "bookworm"
_ENTER = Path(__file__).with_name("emulated")
_MERGED = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"  # /lib is /usr/lib, as on every Debian since 12
_UNSHARE = "/usr/bin/unshare"
_EMULATOR = "an emulator for {} is needed: sudo apt install qemu-user-static"
_DEBIAN = {"aarch64": "arm64"}
# The ELF header of programs and libraries, and which bits of it count.
_MAGIC = {
    "aarch64": r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
}


@dataclass(frozen=True)
class Processor:
    """`model` is what the emulator calls it, `features` what its kernel would say of it."""

    model: str
    features: tuple[str, ...] = ()


#: One for each row of packaging/s2build/kernels.py, and one for which none of them is.
PROCESSORS = {
    "aarch64": {
        "oldest": Processor("cortex-a53"),
        "dotprod": Processor("neoverse-n1", features_of("aarch64", "dotprod")),
        "i8mm": Processor("max,sve=off", features_of("aarch64", "i8mm")),
    }
}


@dataclass(frozen=True)
class Emulated:
    """A machine whose files lie in `root`."""

    machine: str
    root: Path

    def entered(self, processor: Processor) -> tuple[str, ...]:
        """What a command is preceded by to run there, without a network."""
        cpuinfo = self.root / "cpuinfo" / processor.model
        cpuinfo.parent.mkdir(exist_ok=True)
        # The emulator passes on what this machine's kernel says, which is of another processor.
        features = " ".join(("fp", "asimd", *processor.features))
        cpuinfo.write_text("".join(f"processor\t: {number}\nFeatures\t: {features}\n\n" for number in (0, 1)))
        spaces = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child")
        emulator, magic = find_emulator(self.machine), _MAGIC[self.machine]
        enter = (str(_ENTER), str(self.root), emulator, magic, str(cpuinfo), processor.model)
        return (_UNSHARE, *spaces, *enter)


def find_emulator(machine: str) -> str:
    """One that needs no library, where there is one: below another root there would be none for it."""
    found = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if not found:
        raise SetupError(_EMULATOR.format(machine))
    return found


def make_emulated(machine: str, root: Path, packages: tuple[str, ...]) -> Emulated:
    """Debian's essential files and `packages` below `root`, unpacked but not configured."""
    if shutil.which("mmdebstrap") is None:
        raise SetupError("Debian's files for another machine are fetched by mmdebstrap: sudo apt install it")
    root.mkdir(parents=True)
    with Step(f"Debian {SUITE} for {machine}"):
        options = ("--quiet", "--variant=extract", "--components=main", f"--arch={_DEBIAN[machine]}")
        included = [f"--include={name}" for name in ("?essential", *packages)]
        outcome = run(["mmdebstrap", *options, _MERGED, *included, SUITE, root])
        if not outcome.ok:
            raise SetupError(f"cannot fetch Debian's files for {machine}: {last_line(outcome.output)}")
    for name in ("proc", "dev", "run", "root", "tmp"):
        (root / name).mkdir(exist_ok=True)
    emulated = Emulated(machine, root)
    tried = run([*emulated.entered(Processor("max")), "/bin/true"])
    if not tried.ok:
        raise SetupError(f"nothing runs emulated here: {last_line(tried.output)}")
    return emulated
