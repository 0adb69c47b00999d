"""Statements that change tensors: CREATE, INSERT, UPDATE, DELETE and COPY.

Each statement computes all changes first and stores them last, so that an error at any point leaves
the database unchanged.
"""

from einsql.session.statements.copy import copy
from einsql.session.statements.create import create_tensor
from einsql.session.statements.dml import PreparedDml, run

__all__ = ["PreparedDml", "copy", "create_tensor", "run"]
