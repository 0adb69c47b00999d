"""The fingerprint of an optimised graph, which identifies the graph that a plan file is for.

It is a hash of the graph's structure. Labels, fields and inputs count by position, so that other
names of tensors, keys and columns give the same fingerprint. It does not depend on the process,
on the number of sites, or on the present placement of stored tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from einsql.core.schema import PRESENT, Schema, valid
from einsql.ir.einsum.graph import Const, EinSum, Expr, Input, Label, Node, Param, Value, walk
from einsql.ir.functions.python_functions import shown_name

DIGEST_BYTES = 16
"""Bytes of a fingerprint. Among 2^32 graphs, two share one with a probability of about 10^-20."""


def fingerprint(*roots: Node) -> str:
    """The fingerprint of a graph, as hexadecimal digits."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    numbers: dict[int, int] = {}
    for node in walk(*roots):
        form = _input(node) if isinstance(node, Input) else _operation(node, numbers)
        digest.update("\n".join(form).encode())
        digest.update(b"\n\n")
        numbers[id(node)] = len(numbers)
    digest.update(repr([numbers[id(root)] for root in roots]).encode())
    return digest.hexdigest()


def _input(node: Input) -> Iterator[str]:
    schema = node.schema
    yield f"input {[(k.lo, k.hi) for k in schema.keys]} {_fields(schema)}"
    yield f"declared {node.parts} {node.order}"


def _operation(node: EinSum, numbers: Mapping[int, int]) -> Iterator[str]:
    at = {a.label: n for n, a in enumerate(node.axes)}
    schemas = [o.source.schema for o in node.operands]
    for a in node.axes:
        define = "" if a.define is None else _expr(a.define, at, schemas)
        yield f"axis {a.lo} {a.hi} {define}"
    for o in node.operands:
        yield f"operand {numbers[id(o.source)]} {[at[x] for x in o.labels]}"
    yield f"guard {_expr(node.guard, at, schemas)}"
    yield f"keys {[at[k] for k in node.keys]}"
    yield f"fields {_fields(node.schema)}"
    for output in node.outputs:
        args = " ".join(_expr(a, at, schemas) for a in output.args)
        yield f"output {output.reduction} {_expr(output.where, at, schemas)} {args}"
    # A rewrite may leave a hint for a label that the operation has lost.
    yield f"hint {[(at.get(label, -1), parts) for label, parts in node.hint]}"


def _fields(schema: Schema) -> list[str]:
    """The types of the fields, and the meaning of flags: the presence, or a field's validity."""
    meanings = {PRESENT: "present"}
    meanings |= {valid(f.name): f"valid {n}" for n, f in enumerate(schema.fields)}
    return [f"{f.dtype.value} {meanings.get(f.name, '')}" for f in schema.fields]


def _expr(expr: Expr, at: Mapping[str, int], schemas: list[Schema]) -> str:
    match expr:
        case Const():
            return f"{expr.dtype.value}'{expr.spelling}'"
        case Label():
            return f"l{at[expr.name]}"
        case Value():
            names = [f.name for f in schemas[expr.operand].fields]
            return f"v{expr.operand}.{names.index(expr.field)}"
        case Param():
            return f"?{expr.number}"
    args = ",".join(_expr(a, at, schemas) for a in expr.args)
    return f"{shown_name(expr.fn)}:{expr.dtype.value}({args})"
