"""Pointers to operands and results that the compiler may assume not to overlap.

Without that assumption a loop first checks whether its result overlaps its operands. A loop that
reads at computed places cannot check that, and computes one point at a time.

Importing this module imports Numba, so only generated source does it.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

_OPERANDS = 0
"""The address space of all operands; results have those from 1 on."""


class Numbers(types.Type):
    """A pointer to numbers in a part of memory.

    Attributes:
        dtype: The Numba type of the numbers.
        part: Nothing in it is reached through pointers to other parts.
    """

    def __init__(self, dtype: Any, part: int) -> None:
        self.dtype, self.part = dtype, part
        super().__init__(f"numbers({dtype}, {part})")


class _Read(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], Numbers) and isinstance(args[1], types.Integer):
            return _signature(args[0].dtype, args[0], args[1])
        return None


class _Write(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], Numbers) and isinstance(args[1], types.Integer):
            return _signature(types.none, args[0], args[1], args[0].dtype)
        return None


def _note(builder: Any, instruction: Any, part: int) -> None:
    """Says of a load or a store in which part of memory it is, and in which it is not."""
    module = builder.module
    domain = module.add_metadata(["einsql"])
    scopes = [module.add_metadata([f"einsql.{n}", domain]) for n in range(part + 1)]
    instruction.set_metadata("alias.scope", module.add_metadata(scopes[part:]))
    if part:  # a pair of parts is apart if one of both says it
        instruction.set_metadata("noalias", module.add_metadata(scopes[:part]))


def _read(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    loaded = builder.load(builder.gep(args[0], [args[1]]))
    _note(builder, loaded, signature.args[0].part)
    return loaded


def _write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    _note(builder, builder.store(args[2], builder.gep(args[0], [args[1]])), signature.args[0].part)
    return context.get_dummy_value()


# Numba's own are not annotated.
_signature: Any = signature
_infer: Any = infer_global
_lower: Any = lower_builtin
_model: Any = register_model
_model(Numbers)(models.PointerModel)
_infer(operator.getitem)(_Read)
_infer(operator.setitem)(_Write)
_lower(operator.getitem, Numbers, types.Integer)(_read)
_lower(operator.setitem, Numbers, types.Integer, types.Any)(_write)


@intrinsic
def operand(_: Any, address: Any, kind: Any) -> Any:
    """A pointer to an operand's numbers of a kind; it is indexed without any check."""
    return Numbers(kind.dtype, _OPERANDS)(address, kind), _pointer


@intrinsic(prefer_literal=True)
def result(_: Any, address: Any, kind: Any, number: Any) -> Any:
    """A pointer to the numbers of the result of this number, a literal from 1 on."""
    return Numbers(kind.dtype, number.literal_value)(address, kind, number), _pointer


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
    return builder.inttoptr(args[0], context.get_value_type(signature.return_type))
