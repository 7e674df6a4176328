"""One engine per folder: the lock, the socket, and whose folder it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from processes import make_paths

from engine.errors import EngineUnavailable
from engine.instance import Instance, Locked, own_folder
from engine.paths import Paths


def release(instance: Instance) -> None:
    instance.socket.close()
    os.close(instance.lock_fd)


def test_folder_lock_and_socket_are_for_this_user_only(paths: Paths) -> None:
    instance = Instance.claim(paths)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (paths.runtime, paths.lock, paths.socket)]
    assert modes == [0o700, 0o600, 0o600]
    assert paths.lock.read_text() == f"{os.getpid()}\n"
    release(instance)


def test_a_second_engine_is_refused_and_touches_nothing(paths: Paths) -> None:
    first = Instance.claim(paths)
    with pytest.raises(Locked):
        Instance.claim(paths)
    assert first.reachable
    release(first)


def test_a_lock_file_that_was_removed_does_not_let_a_second_engine_in(paths: Paths) -> None:
    first = Instance.claim(paths)
    paths.lock.unlink()
    with pytest.raises(Locked):
        Instance.claim(paths)
    assert first.reachable
    release(first)


def test_a_stale_socket_is_replaced(paths: Paths) -> None:
    first = Instance.claim(paths)
    release(first)  # as a kill -9 leaves it
    assert paths.socket.exists()
    second = Instance.claim(paths)
    assert second.reachable
    second.withdraw()
    assert not paths.socket.exists()
    release(second)


def test_only_the_own_socket_is_withdrawn(paths: Paths) -> None:
    first = Instance.claim(paths)
    paths.socket.rename(paths.socket.with_name("kept"))  # the inode stays taken
    paths.socket.touch()
    assert not first.reachable
    first.withdraw()
    assert paths.socket.exists()
    release(first)


def test_a_path_too_long_for_a_socket_gets_a_short_stand_in(tmp_path: Path) -> None:
    paths = make_paths(tmp_path / ("deep" * 40))
    instance = Instance.claim(paths)
    assert len(os.fsencode(paths.socket)) < 108
    assert stat.S_IMODE(paths.socket.parent.stat().st_mode) == 0o700
    instance.withdraw()
    release(instance)
    paths.socket.parent.rmdir()


def test_an_open_folder_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    own_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_is_no_folder_of_ours(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "there")
    with pytest.raises(EngineUnavailable, match="only this user"):
        own_folder(tmp_path / "run")


def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(EngineUnavailable, match="cannot be used"):
        own_folder(tmp_path / "run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(EngineUnavailable, match="only this user"):
        own_folder(folder)
