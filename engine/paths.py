"""Where the project keeps things on this machine."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_APP = "s2chat"
#: The model that ships, and is used where none is named; the first file where it is a split set.
EMBEDDED_MODEL = Path(__file__).resolve().parent.parent / "assets" / "smolmoe-64x8-00001-of-00002.gguf"
_SOCKET_PATH_MAX = 107  # sun_path is 108 bytes with its terminator


@dataclass(frozen=True, slots=True)
class Paths:
    """Runtime files (socket, lock), logs and the user's data. Folders are made on first use, 0700."""

    runtime: Path
    state: Path
    data: Path

    @classmethod
    def default(cls) -> Paths:
        """The platform's folders, or all three below `S2CHAT_HOME` when that is set."""
        home = os.environ.get("S2CHAT_HOME")
        if home:
            root = Path(home).expanduser().absolute()
            return cls(runtime=root / "run", state=root / "state", data=root / "data")
        return cls(
            runtime=_runtime_folder(),
            state=Path(platformdirs.user_state_path(_APP)),
            data=Path(platformdirs.user_data_path(_APP)),
        )

    @property
    def socket(self) -> Path:
        path = self.runtime / "engine.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
            return path
        # A Unix socket's path has a hard limit; a deep home gets a short stand-in owned by this user.
        import hashlib

        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"{_APP}-{os.getuid()}-{digest}" / "engine.sock"

    @property
    def lock(self) -> Path:
        return self.runtime / "engine.lock"

    @property
    def log(self) -> Path:
        return self.state / "engine.log"

    @property
    def token(self) -> Path:
        """What programs show that reach the engine over TCP."""
        return self.state / "endpoint-token"

    @property
    def history(self) -> Path:
        return self.data / "history.sqlite3"

    @property
    def models(self) -> Path:
        """Models that were downloaded."""
        return self.data / "models"


def _runtime_folder() -> Path:
    """Where the socket lies. Without XDG_RUNTIME_DIR, as over SSH and in containers, it is below the
    temporary folder: nothing to warn anybody of, the folder is made for this user alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_path(_APP))


def settings_file() -> Path:
    """What a person set for every start."""
    home = os.environ.get("S2CHAT_HOME")
    folder = Path(home).expanduser().absolute() if home else Path(platformdirs.user_config_path(_APP))
    return folder / "settings.toml"


def models_cache() -> Path:
    """Where models lie that were made on this machine and can be made again."""
    return Path(platformdirs.user_cache_path(_APP)) / "models"


def packs_cache() -> Path:
    """Where the packed experts of models lie whose own folder cannot be written."""
    return Path(platformdirs.user_cache_path(_APP)) / "packs"


def heat_cache() -> Path:
    """Where it is kept which experts of a model are used."""
    return Path(platformdirs.user_cache_path(_APP)) / "heat"


def calibration_cache() -> Path:
    """Where it is kept how drafts of a model are best made on this machine."""
    return Path(platformdirs.user_cache_path(_APP)) / "calibration"


def speeds_cache() -> Path:
    """Where it is kept how fast this machine's disks and memory are."""
    return Path(platformdirs.user_cache_path(_APP)) / "speeds.json"


def private_dir(path: Path) -> Path:
    """Makes `path` a folder only this user can enter, and returns it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid == os.getuid():
        path.chmod(0o700)
    return path
