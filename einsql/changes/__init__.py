"""Statements that change tensors: CREATE, INSERT, UPDATE, DELETE and COPY.

Each one computes the whole new tensor first and stores it last, so that an error at any
point leaves the database as it was.
"""

from einsql.changes.copying import copy
from einsql.changes.create import create_tensor
from einsql.changes.insert import insert
from einsql.changes.update import delete, update

__all__ = ["copy", "create_tensor", "delete", "insert", "update"]
