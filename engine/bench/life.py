"""Memory of one engine process of a soak, at rest after rest, and how far it is from where it was."""

from __future__ import annotations

from dataclasses import dataclass, field

WARM_RESTS = 1  # which do not count: buffers grow to their size

#: What `Life.growth` says, for whoever reads the figures.
COMPARED = (
    "lean_mib, the engine's RSS at rest without the experts' slots (slots_mib): the budget set to max, the "
    "same answers written with nobody else there, then max again, at which it lets go of the conversations "
    "it keeps on purpose (kept_mib, still in the rss_mib beside it) and of free memory in its heaps. Slots "
    "never take more than was set aside for them; how much of it is touched depends on when the kernel gives "
    "them huge pages. rss_growth is the highest lean_mib of a process over its first, a warming up before "
    "that left out, for the worst process; the lists, and lean_s between first and last, are of the one "
    "measured most often"
)
#: Of mappings that may be huge pages, for which nothing is reserved until they are touched.
_SLOT_FLAGS = {"nr", "hg"}


@dataclass(frozen=True, slots=True)
class Rest:
    """Bytes of an engine that nobody asks anything. `rss`, with `kept`, conversations that made room for
    others; `lean` once they are let go of, without `slots`, what experts' slots hold. `at` in seconds."""

    at: float
    rss: int
    kept: int
    slots: int
    lean: int


def slots_resident(smaps: str) -> int:
    """Bytes of experts' slots that are in memory, in what /proc/PID/smaps says; native/s2/store maps them
    as nothing else is mapped."""
    found = resident = 0
    for line in smaps.splitlines():
        name, _, value = line.partition(":")
        if name == "Rss":
            resident = int(value.split()[0]) << 10
        elif name == "VmFlags" and set(value.split()) >= _SLOT_FLAGS:
            found += resident
    return found


@dataclass(slots=True)
class Life:
    """One engine process, from its start to its end."""

    rests: list[Rest] = field(default_factory=list)

    @property
    def counted(self) -> list[Rest]:
        return self.rests[WARM_RESTS:]

    @property
    def growth(self) -> float:
        """Of the highest measurement over the first that counts; 0 where there are not two."""
        lean = [rest.lean for rest in self.counted]
        return max(lean) / lean[0] - 1 if lean else 0.0

    @property
    def seconds(self) -> float:
        """Between the first measurement that counts and the last."""
        return self.counted[-1].at - self.counted[0].at if self.counted else 0.0
