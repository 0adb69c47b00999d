"""The manifest of an exported database, which lists a file for each tensor.

The manifest is JSON. It lists the objects as the catalog of a database file does: of a tensor all
that it is but its elements, of a view or macro the text. The elements are in Arrow files, written
as the payloads of a database file are.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from einsql.errors import OperationalError
from einsql.storage.database import rows, sparse_payload
from einsql.storage.database.catalog_reader import Define, object_of
from einsql.storage.database.directory import Directory
from einsql.storage.database.payload import Progress
from einsql.storage.database.rows import Row
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.files.drafts import part_file, writing
from einsql.storage.objects import Damaged, Definition, Object, Tensor, damage_error
from einsql.storage.sparse_fields import sparse_fields_of

MANIFEST = "einsql.json"
"""The file that lists the objects."""
_TENSORS = "einsql"
"""The name of the subdirectory with the elements."""
_VERSION = 0
"""The commit number of an exported object: it belongs to no commit."""


def manifest_of(folder: str) -> str:
    """The path of the manifest in a directory, which may have none."""
    return os.path.join(folder, MANIFEST)


def write_objects(folder: str, objects: Iterable[Object], tick: Progress) -> None:
    """Writes tensors, views and macros into a directory.

    Args:
        folder: The directory.
        objects: The objects to write.
        tick: Called with the number of bytes after each piece of a tensor.

    Raises:
        OperationalError: An object or its payload is damaged, or a file cannot be written.
    """
    directory = Directory(os.path.join(folder, _TENSORS))
    listed = list[dict[str, Any]]()
    for item in objects:
        if isinstance(item, Damaged):
            raise damage_error(item)
        layout = None
        if isinstance(item, Tensor):
            with writing(directory.path):
                os.makedirs(directory.path, exist_ok=True)
            layout = directory.store(item, _VERSION, tick)
        row = rows.row_of(item, _VERSION, layout)
        listed.append(
            {"name": row.name, "kind": row.kind, "definition": json.loads(row.description)}
        )
    if os.path.isdir(directory.path):
        directory.sync()
    lines = ",\n".join(map(json.dumps, listed))
    with part_file(manifest_of(folder)) as file:
        file.write(f'{{"format": {rows.FORMAT}, "objects": [\n{lines}\n]}}\n'.encode())


def read_objects(folder: str, define: Define) -> list[Object]:
    """The objects that a directory's manifest lists; the elements of tensors stay in their files.

    Args:
        folder: The directory, with a manifest.
        define: Creates a definition from its kind, name and text.

    Raises:
        OperationalError: The manifest is damaged, or of a newer format.
    """
    path = manifest_of(folder)
    directory = Directory(os.path.join(folder, _TENSORS))
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        version = int(manifest["format"])
        listed = [
            Row(
                name=str(o["name"]),
                version=_VERSION,
                kind=str(o["kind"]),
                description=json.dumps(o["definition"]),
            )
            for o in (manifest["objects"] if 0 < version <= rows.FORMAT else ())
        ]
    except OSError as error:
        raise OperationalError(f"'{path}' cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise OperationalError(f"'{path}' is damaged: {error}") from None
    if not 0 < version <= rows.FORMAT:
        raise OperationalError(
            f"'{path}' has format {version}, and this einsql reads formats up to {rows.FORMAT}"
        )
    name, times = max(
        Counter(row.name for row in listed).items(), key=itemgetter(1), default=("", 0)
    )
    if times > 1:
        raise OperationalError(f"'{path}' is damaged: it lists {name} {times} times")
    return [_checked(object_of(row, directory, define), path) for row in listed]


def _checked(item: Object, path: str) -> Object:
    """The object, whose definition is parsed.

    Raises:
        OperationalError: It is damaged.
    """
    fault = item.fault if isinstance(item, Damaged) else ""
    if isinstance(item, Definition):
        try:
            _ = item.body
        except OperationalError:
            fault = item.fault
    if fault:
        raise OperationalError(f"'{path}' is damaged at \"{item.name}\": {fault}")
    return item


def in_memory(tensor: Tensor, copied: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """A tensor of an export with its elements in memory, all of them verified.

    Args:
        tensor: A tensor that `read_objects` returned.
        copied: Copies an array.

    Raises:
        OperationalError: The file of its elements is missing, truncated or damaged.
    """
    stored = tensor.relation.fields
    few = sparse_fields_of(stored)
    fields: Fields
    if few is not None:
        fields = sparse_payload.in_memory(few, copied)
    else:
        fields = LocalFields({name: copied(a) for name, a in stored.items()})
    return replace(tensor, relation=replace(tensor.relation, fields=fields))
