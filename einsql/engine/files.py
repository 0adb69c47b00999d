"""Tensor files: .npy and .npz, checked before anything is believed."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from einsql.errors import OperationalError
from einsql.schema import DType


def read(path: str, member: str | None = None) -> np.ndarray:
    """Opens a tensor file; .npy is memory-mapped, .npz members are read.

    Args:
        path: A .npy or .npz file.
        member: Which array of an .npz; may be omitted if it holds one.

    Raises:
        OperationalError: The file is missing, truncated, pickled, of another format, or
            its dtype is no tensor type.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise OperationalError(
            f"'{path}' is no tensor file einsql reads", hint="It reads .npy and .npz files."
        )
    if not os.path.exists(path):
        raise OperationalError(f"There is no file '{path}'")
    try:
        _check_magic(path, suffix)
        with np.errstate(all="ignore"):  # a shape of 2⁶⁴ elements overflows before it is refused
            array: object = (
                _member(path, member)
                if suffix == ".npz"
                else np.load(path, mmap_mode="r", allow_pickle=False)
            )
    except OperationalError:
        raise
    except Exception as error:  # NumPy evaluates the header, so a wrong one raises anything
        raise OperationalError(_why(path, error)) from error
    if not isinstance(array, np.ndarray):
        raise OperationalError(f"'{path}' holds a file that is no array")
    if DType.of(array.dtype) is None:
        raise OperationalError(
            f"'{path}' holds {array.dtype}, which is no tensor type",
            hint="dtypes are " + ", ".join(t.numpy.name for t in DType) + ".",
        )
    return array


def _check_magic(path: str, suffix: str) -> None:
    """Looks at the first bytes, for NumPy takes any foreign file for a pickle."""
    magic = b"PK" if suffix == ".npz" else b"\x93NUMPY"
    with open(path, "rb") as file:
        if not file.read(len(magic)).startswith(magic):
            raise OperationalError(f"'{path}' is no {suffix} file: its first bytes are wrong")


def _member(path: str, member: str | None) -> object:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        if member is None and len(archive.files) == 1:
            member = archive.files[0]
        if member not in archive.files:
            names = ", ".join(archive.files[:12])
            asked = f"no array '{member}'" if member else f"{len(archive.files)} arrays"
            raise OperationalError(
                f"'{path}' has {asked}", hint=f"Name one with (TENSOR 'name'): {names}."
            )
        array: object = archive[member]
        return array


def _why(path: str, error: Exception) -> str:
    text = str(error)
    if isinstance(error, MemoryError):
        return f"'{path}' does not fit in memory"
    pickled = any(word in text for word in ("pickle", "Object arrays", "Python objects"))
    if pickled and not text.startswith("Header info length"):  # it recommends pickles
        return f"'{path}' is pickled, which could run code; einsql refuses it"
    if isinstance(error, zipfile.BadZipFile):
        return f"'{path}' is no .npz archive, or a damaged one"
    if isinstance(error, PermissionError | IsADirectoryError):
        return f"'{path}' cannot be opened: {error.strerror}"
    return f"'{path}' is truncated or no NumPy file: {text.splitlines()[0] if text else error!r}"


def write(path: str, array: np.ndarray, name: str) -> None:
    """Writes a .npy or .npz file, whole or not at all.

    Args:
        path: Target file; an existing one is replaced.
        array: What to write.
        name: The array's name inside an .npz.

    Raises:
        OperationalError: The suffix is unknown or the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise OperationalError(
            f"'{path}' is no tensor file einsql writes", hint="It writes .npy and .npz files."
        )
    part = f"{path}.part-{os.getpid()}"
    try:
        with open(part, "wb") as file:
            if suffix == ".npy":
                np.save(file, array, allow_pickle=False)
            else:
                np.savez(file, allow_pickle=False, **{name: array})
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OperationalError(f"'{path}' cannot be written: {why}") from error
    finally:
        if os.path.exists(part):
            os.unlink(part)
