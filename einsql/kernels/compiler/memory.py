"""Pointers and arrays of kernels, as LLVM code: elements, extents, parts of memory.

A loop over pointers to different parts of memory need not check whether its result overlaps its
operands. A loop that reads at computed places cannot check that, and would compute one point at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.kernel_types import WORD, Type
from einsql.kernels.compiler.language import Unsupported, intrinsic
from einsql.kernels.compiler.operations import cast, struct

_OPERANDS = 0
"""The part of memory of all operands; results have those from 1 on."""


def element(kind: Type, indices: Sequence[Type]) -> Type:
    """The type of an element of a pointer, or of an array; of an array with more axes a row.

    Raises:
        Unsupported: It has no such elements.
    """
    if isinstance(kind, types.Pointer | types.Array) and all(
        isinstance(i, types.Integer) for i in indices
    ):
        axes = kind.ndim if isinstance(kind, types.Array) else 1
        if len(indices) == axes:
            return kind.dtype
        if len(indices) < axes:
            return types.Array(kind.dtype, axes - len(indices))
    raise Unsupported("an element")


def read(builder: Any, kind: Any, value: Any, indices: Sequence[tuple[Type, Any]]) -> Any:
    """The code of an element or a row."""
    result = element(kind, [t for t, _ in indices])
    place = _place(builder, kind, value, indices)
    if isinstance(result, types.Array):
        extents = [builder.extract_value(value, 1 + len(indices) + n) for n in range(result.ndim)]
        return struct(builder, result, [place, *extents])
    loaded = builder.load(place)
    _note(builder, loaded, kind)
    return builder.trunc(loaded, result.code) if result == types.boolean else loaded


def write(
    builder: Any,
    kind: Any,
    value: Any,
    indices: Sequence[tuple[Type, Any]],
    number: tuple[Type, Any],
) -> None:
    """Emits a store of a number to an element."""
    result = element(kind, [t for t, _ in indices])
    if isinstance(result, types.Array):
        raise Unsupported("assignment to a row")
    code = cast(builder, number[1], number[0], result)
    if result == types.boolean:
        code = builder.zext(code, result.stored)
    _note(builder, builder.store(code, _place(builder, kind, value, indices)), kind)


def _place(builder: Any, kind: Any, value: Any, indices: Sequence[tuple[Type, Any]]) -> Any:
    words = [cast(builder, i, t, types.int64) for t, i in indices]
    if isinstance(kind, types.Pointer):
        return builder.gep(value, words)
    extents = [builder.extract_value(value, 1 + n) for n in range(kind.ndim)]
    along = WORD(0)
    for axis, ((index_type, _), word) in enumerate(zip(indices, words, strict=True)):
        if isinstance(index_type, types.Integer) and index_type.signed:
            below = builder.icmp_signed("<", word, WORD(0))
            word = builder.select(below, builder.add(word, extents[axis]), word)
        for extent in extents[axis + 1 :]:
            word = builder.mul(word, extent)
        along = builder.add(along, word)
    return builder.gep(builder.extract_value(value, 0), [along])


def _note(builder: Any, instruction: Any, kind: Any) -> None:
    """Says of a load or a store in which part of memory it is, and in which it is not."""
    part = kind.part if isinstance(kind, types.Pointer) else None
    if part is None:
        return
    module = builder.module
    domain = module.add_metadata(["einsql"])
    scopes = [module.add_metadata([f"einsql.{n}", domain]) for n in range(part + 1)]
    instruction.set_metadata("alias.scope", module.add_metadata(scopes[part:]))
    if part:  # a pair of parts is apart if one of both says it
        instruction.set_metadata("noalias", module.add_metadata(scopes[:part]))


def extents_of(builder: Any, kind: types.Array, value: Any) -> list[Any]:
    """The code of an array's extents; None for each if there is no builder."""
    axes = range(kind.ndim)
    return [None if builder is None else builder.extract_value(value, 1 + n) for n in axes]


def address_of(builder: Any, value: Any) -> Any:
    """The code of an array's address, an integer."""
    return builder.ptrtoint(builder.extract_value(value, 0), WORD)


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.inttoptr(args[0], signature.return_type.code)


@intrinsic
def at(_: Any, address: Any, kind: Any) -> Any:
    """A pointer to numbers of a kind; it is indexed without any check."""
    return types.Pointer(kind.dtype)(types.int64, kind), _pointer


@intrinsic
def operand(_: Any, address: Any, kind: Any) -> Any:
    """A pointer to an operand's numbers of a kind."""
    return types.Pointer(kind.dtype, _OPERANDS)(types.int64, kind), _pointer


def _result(_: Any, address: Any, kind: Any, number: Any) -> Any:
    return types.Pointer(kind.dtype, number.literal_value)(types.int64, kind, number), _pointer


result = intrinsic(_result, prefer_literal=True)
"""A pointer to the numbers of the result of this number, a literal from 1 on."""
