"""Tensor files: .npy, .npz, .safetensors and .arrow, checked before anything is believed.

Reading: `open_tensor` finds out what a file holds, `FileTensor.read` copies a box of it and
touches no other page, `FileTensor.description` travels to another process, where `reopen`
gives the same tensor or refuses. Writing by several processes: one `create`s a draft, each
does `write_box`, one does `commit` or `abandon`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from einsql.engine.files import arrow, npy, npz, safetensors
from einsql.engine.files.drafts import Draft, abandon, commit, part_file, write_box
from einsql.engine.files.drafts import draft as _draft
from einsql.engine.files.fields import FileFields
from einsql.engine.files.mapped import Mapped, refusing
from einsql.engine.files.tensor import Description, FileTensor
from einsql.errors import OperationalError
from einsql.schema import DType

__all__ = [
    "Description",
    "Draft",
    "FileFields",
    "FileTensor",
    "abandon",
    "commit",
    "create",
    "open_tensor",
    "read",
    "reopen",
    "write",
    "write_box",
]

_READERS = {
    ".npy": npy.find,
    ".npz": npz.find,
    ".safetensors": safetensors.find,
    ".arrow": arrow.find,
}
_BEGINNINGS = {".npy": npy.begin, ".safetensors": safetensors.begin, ".arrow": arrow.begin}
"""What writes everything but the elements; a format with them all in one place has it."""


def open_tensor(path: str, member: str | None = None) -> FileTensor:
    """Opens a tensor in a file; no element is read where the format allows to map them.

    What is mapped: .npy, .safetensors, members of an .npz that are not compressed, and
    columns of an .arrow file that are not compressed. The rest is read as a whole.

    Args:
        path: A .npy, .npz, .safetensors or .arrow file.
        member: Which array or column; may be omitted if the file holds one.

    Raises:
        OperationalError: The file is missing, truncated, damaged, pickled, of another
            format, has no such member, or its dtype is no tensor type.
    """
    find = _READERS[_suffix(path, "reads")]
    with refusing(path):
        file = Mapped(path)
        return FileTensor(file, find(file, member))


def reopen(description: Description) -> FileTensor:
    """Opens a described tensor again, in any process.

    Raises:
        OperationalError: As `open_tensor`, or the file is not the one that was described.
    """
    found = open_tensor(description.path, description.member)
    if found.description != description:
        raise OperationalError(
            f"'{description.path}' has changed while a statement used it",
            hint="Run the statement again.",
        )
    return found


def read(path: str, member: str | None = None) -> np.ndarray:
    """A tensor file's array, mapped where possible: what `open_tensor` finds, as a whole.

    Raises:
        OperationalError: As `open_tensor`.
    """
    return open_tensor(path, member).array


def write(path: str, array: np.ndarray, name: str) -> None:
    """Writes a tensor file, whole or not at all.

    Args:
        path: Target file; an existing one is replaced.
        array: What to write, of a dtype that DType stores.
        name: The array's name in formats that have names.

    Raises:
        OperationalError: The suffix is unknown or the file cannot be written.
        NotSupportedError: The format has no such type.
    """
    dtype = DType.of(array.dtype)
    if _suffix(path, "writes") == ".npz":
        if dtype is not None:
            npy.check_type(dtype)
        with part_file(path) as file:
            np.savez(file, allow_pickle=False, **{name: array})
        return
    if dtype is None:
        raise OperationalError(f"'{path}' cannot be written: {array.dtype} is no tensor type")
    draft = create(path, dtype, array.shape, name)
    try:
        write_box(draft, [slice(None)] * array.ndim, array)
        commit(draft)
    except BaseException:
        abandon(draft)
        raise


def create(path: str, dtype: DType, shape: tuple[int, ...], name: str = "val") -> Draft:
    """Begins a file that several processes fill: its part file, at full size.

    Args:
        path: A .npy, .safetensors or .arrow file; an existing one is replaced by `commit`.
        dtype: Type of the elements.
        shape: Extents of the whole tensor.
        name: The tensor's name in formats that have names.

    Raises:
        OperationalError: The format cannot be written in parts, or the file not at all.
    """
    suffix = _suffix(path, "writes")
    if suffix not in _BEGINNINGS:
        raise OperationalError(
            f"'{path}' cannot be written by several processes",
            hint=f"They write {_listed(_BEGINNINGS)} files.",
        )
    return _draft(path, dtype, shape, name, _BEGINNINGS[suffix])


def _suffix(path: str, does: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise OperationalError(
            f"'{path}' is no tensor file einsql {does}",
            hint=f"It {does} {_listed(_READERS)} files.",
        )
    return suffix


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"
