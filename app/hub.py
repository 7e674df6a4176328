"""What a name on the Hugging Face hub stands for: the files of one model, with sizes and checksums.

The network is touched by `look_up` and by nothing else here; the package is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from engine.errors import BadRequest, S2Error
from engine.size import size

_ADDRESS = re.compile(r"^(?:https?://)?(?:huggingface\.co|hf\.co)/")
_NUMBERS = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)", re.IGNORECASE)
_SHA = re.compile(r"[0-9a-f]{64}")
_USUAL = "Q4_K_M"  # what llama.cpp takes where nothing is said
_TIMEOUT_S = 15.0
_NAMED = 8  # choices that are listed


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`name` is its path in the repository, `sha256` in hexadecimal digits."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Offer:
    """One model that can be fetched: `files` are all of its set, in order, as they are in `revision`."""

    repo: str
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """As `look_up` reads it."""
        return f"{self.repo}:{self.files[0].name}"


def package() -> Any:
    """huggingface_hub, told to be silent. Raises S2Error where it is not installed."""
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise S2Error(
            f"models cannot be downloaded: {error}",
            hint="`pip install huggingface_hub` into s2chat's environment",
        ) from None
    hub.logging.set_verbosity_error()  # it would write over the interface
    return hub


def endpoint() -> str | None:
    """Another hub than the public one, where the environment names it."""
    return os.environ.get("HF_ENDPOINT") or None


def parse_name(words: str) -> tuple[str, str]:
    """Repository, and the file or quantisation after the colon, "" for none. Raises BadRequest."""
    repo, _, what = _ADDRESS.sub("", words.strip()).partition(":")
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repo) or ".." in repo:
        raise BadRequest(
            f"{words!r} is no name of a repository",
            hint="write OWNER/NAME, OWNER/NAME:Q4_K_M or OWNER/NAME:FILE",
        )
    return repo, what.strip()


def look_up(words: str) -> Offer:
    """Asks the hub. Raises BadRequest for a name it does not know or that means several models, S2Error when
    it cannot be reached."""
    repo, what = parse_name(words)
    hub = package()
    try:
        found = hub.HfApi(endpoint=endpoint()).model_info(repo, files_metadata=True, timeout=_TIMEOUT_S)
    except Exception as error:
        raise told(error, repo) from error
    sets = _sets(found.siblings or ())
    if not sets:
        raise BadRequest(f"{repo} has no GGUF files", hint="repositories with some often end in -GGUF")
    chosen = sets[_choose(repo, sets, what)]
    for file in chosen:
        if not file.sha256:
            raise S2Error(f"the hub names no checksum of {file.name}, so it could not be verified")
    return Offer(repo, found.sha, chosen)


def told(error: Exception, repo: str) -> S2Error:
    """What the package or the network raised, in words a person can act on."""
    from httpx2 import HTTPError
    from huggingface_hub import errors

    if isinstance(error, S2Error):
        return error
    if isinstance(error, errors.GatedRepoError):
        return S2Error(
            f"{repo} is only for those who accepted its terms",
            hint="accept them on its page, `hf auth login`",
        )
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return BadRequest(
            f"the hub has no {repo}, or not for everyone", hint="check the name; `hf auth login` for your own"
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return S2Error("the hub may not be asked: HF_HUB_OFFLINE is set")
    if isinstance(error, errors.HfHubHTTPError):
        code = getattr(getattr(error, "response", None), "status_code", "?")
        return S2Error(f"the hub answers with error {code}", hint="try again later")
    if isinstance(error, (HTTPError, OSError)):
        return S2Error(
            f"offline: the hub cannot be reached ({error or type(error).__name__})",
            hint="the chat does not need it",
        )
    return S2Error(f"the hub's answer makes no sense: {error!r}")


def _sets(siblings: Iterable[Any]) -> dict[str, tuple[RemoteFile, ...]]:
    """The models of a repository by name, split sets as one."""
    sets: dict[str, list[RemoteFile]] = {}
    for sibling in siblings:
        name = str(sibling.rfilename)
        if (
            not name.lower().endswith(".gguf")
            or PurePosixPath(name).name.startswith("mmproj")
            or not is_safe(name)
        ):
            continue
        lfs = sibling.lfs
        sha256 = lfs.sha256.lower() if lfs and _SHA.fullmatch(lfs.sha256.lower()) else ""
        count = sibling.size or (lfs.size if lfs else 0) or 0
        file = RemoteFile(name, int(count), sha256)
        sets.setdefault(_NUMBERS.sub("", name), []).append(file)
    return {key: tuple(sorted(files, key=lambda file: file.name)) for key, files in sorted(sets.items())}


def is_safe(name: str) -> bool:
    """Whether a name from the network stays below the folder it is written to."""
    parts = PurePosixPath(name).parts
    return (
        bool(parts)
        and name.isprintable()
        and not any(part in ("..", "/") or part.startswith(".") for part in parts)
    )


def _choose(repo: str, sets: dict[str, tuple[RemoteFile, ...]], what: str) -> str:
    if not what and len(sets) == 1:
        return next(iter(sets))
    if what.lower().endswith(".gguf"):
        fitting = [key for key, files in sets.items() if any(file.name == what for file in files)]
    else:
        fitting = [key for key in sets if _has_word(key, what or _USUAL)]
    if len(fitting) == 1:
        return fitting[0]
    many = fitting or list(sets)
    listed = [f"{key} ({size(sum(file.size for file in sets[key]))})" for key in many[:_NAMED]]
    more = f" and {len(many) - _NAMED} more" if len(many) > _NAMED else ""
    said = f"has no {what!r}" if what and not fitting else "has several models"
    raise BadRequest(
        f"{repo} {said}: {', '.join(listed)}{more}",
        hint="name one as OWNER/NAME:FILE, or by its quantisation",
    )


def _has_word(name: str, word: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])", name, re.IGNORECASE) is not None
