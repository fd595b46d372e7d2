"""One command's changes to a workspace: exclusive, and none if the command fails. Knows no stage.

The command works in a copy inside the workspace directory (hard links, so it costs nothing). At the end the files of
the copy are moved into place, which no signal but SIGKILL interrupts. Files are replaced, never written to
(artifact.py), so the links leave the originals unchanged.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from taglio import artifact
from taglio.errors import BadArtifact, Busy, TaglioError
from taglio.optional import uninterrupted

_STAGED = ".taglio-new"
# Subfolders whose files are part of the workspace, parents first; others are caches or the user's, and are only read.
FOLDERS = ("", "components", "deploy", "deploy/samples", "profiles")


@contextlib.contextmanager
def held(folder: Path, *, create: bool = False) -> Iterator[tuple[int, ...]]:
    """Lock a workspace against other commands, and clean up after a killed one. Raises Busy.

    The kernel holds the lock until this process has ended, in whatever way, and all those that it passed the yielded
    file descriptors to. With `create` the folder is made, and removed again if it stays empty; without, a folder that
    does not exist is not locked.
    """
    new_folders = _make(folder) if create else []
    try:
        with _locked(folder) as places:
            yield places
    finally:
        for new_folder in new_folders:
            with contextlib.suppress(OSError):  # not empty
                new_folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[tuple[int, ...]]:
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield ()
        return
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "wait until it ends, or choose another directory"
            raise Busy(f"{folder} is in use by another taglio: {fix}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):  # no locks here
                raise
        _recover(folder)
        yield (place,)
    finally:
        os.close(place)


@contextlib.contextmanager
def changing(folder: Path, *, create: bool = False) -> Iterator[Path]:
    """The folder to work in instead of `folder`; its contents replace the workspace's files at the end, unless an error
    ends the command. `create` as for `held`. Raises Busy, and BadArtifact if the disk refuses."""
    with held(folder, create=create):
        if not folder.is_dir():  # the first stage was not run: reading its artifact reports that
            yield folder
            return
        # Keep the folder's name: when several models are placed together, each is named after its folder.
        staged = folder / _STAGED / folder.resolve().name
        try:
            _link(folder, staged)
            yield staged
            _commit(folder, staged)
        except OSError as error:
            raise artifact.refusal(folder, error) from None
        except TaglioError as error:
            error.args = tuple(str(argument).replace(str(staged), str(folder)) for argument in error.args)
            raise
        finally:
            _remove(folder / _STAGED)


def drop(staged: Path, *names: str) -> None:
    """Remove everything made from a stage that is replaced; a folder's name means all files in it."""
    for name in names:
        path = staged / name
        for file in _files(path) if path.is_dir() else [path]:
            file.unlink(missing_ok=True)


def _make(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were missing, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise artifact.refusal(folder, error) from None
    return missing


def _link(folder: Path, staged: Path) -> None:
    for subfolder in FOLDERS:
        (staged / subfolder).mkdir(parents=True, exist_ok=True)
        for path in _files(folder / subfolder):
            target = staged / subfolder / path.name
            try:
                target.hardlink_to(path)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                shutil.copy2(path, target)
    for other in folder.iterdir():
        if other.is_dir() and other.name not in FOLDERS and not other.name.startswith("."):
            (staged / other.name).symlink_to(other.resolve())


def _commit(folder: Path, staged: Path) -> None:
    """Move the files of `staged` into place, and remove those that it does not have."""
    with uninterrupted():
        for subfolder in FOLDERS:
            (folder / subfolder).mkdir(exist_ok=True)
            for path in _files(folder / subfolder):
                if not (staged / subfolder / path.name).exists():
                    path.unlink()
            for path in _files(staged / subfolder):
                path.replace(folder / subfolder / path.name)
            _sync(folder / subfolder)
        for subfolder in reversed(FOLDERS):
            if subfolder and not any((folder / subfolder).iterdir()):
                (folder / subfolder).rmdir()


def _recover(folder: Path) -> None:
    """Remove what a killed command left. Raises BadArtifact for links to other folders, whose files would be replaced
    or removed: a workspace may come from someone else."""
    for subfolder in filter(None, FOLDERS):
        for path in (folder / subfolder, *(folder / subfolder).rglob("*")):
            if path.is_symlink() and (path == folder / subfolder or not path.is_file()):
                raise BadArtifact(f"{path} is a symbolic link: put the directory itself there")
    _remove(folder / _STAGED)
    for subfolder in FOLDERS:
        if (folder / subfolder).is_dir():
            artifact.remove_temporaries(folder / subfolder)


def _remove(path: Path) -> None:
    """Remove a folder, or what lies in its place."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]


def _sync(folder: Path) -> None:
    """Make renames in a folder survive a power failure."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
