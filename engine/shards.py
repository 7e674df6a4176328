"""Whether the files of a split set belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import ModelError
from engine.header import Layout


def check_shards(files: Sequence[Path], layouts: Sequence[Layout]) -> None:
    """Raises ModelError that names the file which is another set's.

    A file tells its own place and its set's size; sets cut at other tensors, as those of another quantisation
    are, have tensors twice or not at all.
    """
    homes: dict[str, Path] = {}
    for number, (file, layout) in enumerate(zip(files, layouts, strict=True)):
        place, count = layout.values.get("split.no", number), layout.values.get("split.count", len(files))
        if (place, count) != (number, len(files)):
            where = f"file {place + 1} of {count}" if isinstance(place, int) else "of another kind"
            raise _foreign(file, f"it says it is {where}, its name file {number + 1} of {len(files)}")
        for tensor in layout.tensors:
            if (other := homes.setdefault(tensor.name, file)) is not file:
                raise _foreign(file, f"{tensor.name} is in {other.name} too")
    promised = layouts[0].values.get("split.tensors.count", len(homes))
    if promised != len(homes):
        raise ModelError(
            f"{files[0]}: its split set holds {len(homes)} tensors of {promised}, "
            "so one of its files belongs to another set",
            hint="fetch all its files again",
        )


def _foreign(file: Path, why: str) -> ModelError:
    return ModelError(f"{file}: does not belong to its split set: {why}", hint="fetch that file again")
