"""Checks that only this user and root can change files and directories.

einsql executes compiled kernels and start-up scripts from disk, so another user must not be
able to place or replace them. Paths are opened from the root by file descriptors: once a
directory has been checked, no other user can exchange its content.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from functools import cache

CHECKED = hasattr(os, "geteuid")
"""False on Windows, whose access control lists this module does not examine."""

_LINKS = 40
"""Most symbolic links of one path, as in Linux."""
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY | getattr(os, "O_NOFOLLOW", 0)
"""Flags for directories of a path; O_PATH requires no permission to read them."""
_READ = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
"""Without O_NONBLOCK opening a FIFO waits for its writer."""


class ExposedError(OSError):
    """Another user controls a file or directory; the message is a clause that names it."""


def private_directory(path: str, *below: str) -> str:
    """Creates directories with mode 0700 where they are absent, and checks all of them.

    Args:
        path: An absolute path; it may contain symbolic links.
        below: The names of nested directories in it, outermost first.

    Returns:
        The path of the innermost directory without symbolic links; no other user can redirect it.

    Raises:
        ExposedError: Other users can change an ancestor, or `path` or a directory below it
            belongs to another user or is writable by others.
        OSError: A directory cannot be created.
    """
    if not CHECKED:
        place = os.path.join(path, *below)
        os.makedirs(place, mode=0o700, exist_ok=True)
        return os.path.realpath(place)
    end, real = _walk(path)
    try:
        _check_own(os.fstat(end), real)
        for name in below:
            inner = _entered(end, real, name)
            os.close(end)
            end, real = inner, os.path.join(real, name)
            _check_own(os.fstat(end), real)
    finally:
        os.close(end)
    return real


def read_private(path: str) -> bytes:
    """The content of a regular file that belongs to this user and is not writable by others.

    Raises:
        ExposedError: The file belongs to another user, or is writable by others.
        OSError: The file cannot be read, or is not a regular file.
    """
    file = os.open(path, _READ)
    with open(file, "rb") as text:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"'{path}' is not a regular file")
        if CHECKED:
            _check_own(facts, path)
        return text.read()


def check_file(path: str) -> None:
    """Refuses a file that users other than this one and root can change.

    Raises:
        ExposedError: Another user can change or replace the file.
        OSError: The file cannot be examined.
    """
    if not CHECKED:
        return
    directory, real = _walk(os.path.dirname(os.path.realpath(path)))
    try:
        name = os.path.basename(os.path.realpath(path))
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
        _check_shared(facts, os.path.join(real, name))
    finally:
        os.close(directory)


def _walk(path: str) -> tuple[int, str]:
    """Opens a directory, and creates it where it is absent.

    Returns:
        The directory's descriptor and its path without symbolic links.

    Raises:
        ExposedError: Other users can redirect the path.
        OSError: The directory cannot be opened or created.
    """
    names, links = deque(path.split(os.sep)), 0
    here, real = os.open(os.sep, _WALK), os.sep
    try:
        _check_shared(os.fstat(here), real)
        while names:
            name = names.popleft()
            if name in ("", os.curdir):
                continue
            inner = os.path.normpath(os.path.join(real, name))
            target = None if name == os.pardir else _target(here, inner, name)
            if target is None:
                child = _entered(here, real, name)
                os.close(here)
                here, real = child, inner
                _check_shared(os.fstat(here), real)
                continue
            links += 1
            if links > _LINKS:
                raise OSError(f"'{path}' has too many symbolic links")
            names.extendleft(reversed(target.split(os.sep)))
            if os.path.isabs(target):
                os.close(here)
                here, real = os.open(os.sep, _WALK), os.sep
    except BaseException:
        os.close(here)
        raise
    return here, real


def _target(directory: int, path: str, name: str) -> str | None:
    """The target of a symbolic link in an open directory; None if there is no link."""
    try:
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(facts.st_mode):
        return None
    if facts.st_uid not in (0, os.geteuid()):
        raise ExposedError(f"the symbolic link '{path}' belongs to another user")
    return os.readlink(name, dir_fd=directory)


def _entered(directory: int, real: str, name: str) -> int:
    """Opens a directory in an open one, and creates it where it is absent."""
    try:
        return os.open(name, _WALK, dir_fd=directory)
    except FileNotFoundError:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:  # another process has just created it
            pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(real, name)) from None
        return os.open(name, _WALK, dir_fd=directory)


def _check_own(facts: os.stat_result, path: str) -> None:
    """Refuses files that belong to another user or are writable by others."""
    if facts.st_uid != os.geteuid():
        raise ExposedError(f"'{path}' belongs to another user")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ExposedError(f"'{path}' may be written by other users")


def _check_shared(facts: os.stat_result, path: str) -> None:
    """Refuses files that users other than this one and root can change.

    In a sticky directory only the owner of an entry can replace it.
    """
    if facts.st_uid not in (0, os.geteuid()):
        raise ExposedError(f"'{path}' belongs to another user")
    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX:
        return
    by_group = facts.st_mode & stat.S_IWGRP and not _is_of_user_alone(facts.st_gid)
    if by_group or facts.st_mode & stat.S_IWOTH:
        raise ExposedError(f"'{path}' may be written by other users")


@cache
def _is_of_user_alone(group: int) -> bool:
    """True for root's group, and for a group of the user's own name without other members.

    Many systems give each user such a group, and create the user's files writable by it.
    """
    if group == 0:
        return True
    import grp  # not on Windows
    import pwd

    try:
        user, group_entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    same = group_entry.gr_name == user.pw_name and group == user.pw_gid
    return same and set(group_entry.gr_mem) <= {user.pw_name}
