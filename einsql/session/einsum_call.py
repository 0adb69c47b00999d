"""`einsql.einsum`: einsum expressions on the engine, without SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema, valid
from einsql.errors import InterfaceError, ProgrammingError
from einsql.ir.einsum.graph import Input
from einsql.ir.einsum.notation import Spec, parse_spec
from einsql.planner.plan import Plan
from einsql.planner.planner import BinderCatalog, make_plan
from einsql.planner.queries import query_binder
from einsql.sql.binder.einsum_algebra import Algebra
from einsql.sql.binder.einsum_call import einsum_relation
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.scope.relation import Column, Relation
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.host_arrays import array_relation, is_sparse
from einsql.storage.out_of_memory import enough_memory
from einsql.storage.relation import Relation as Stored

if TYPE_CHECKING:
    from einsql.planner import plan_files
    from einsql.planner.context import Context
    from einsql.sql.macros.expansion import MacroExpander
else:  # imported for plan files only
    plan_files = LazyModule("einsql.planner.plan_files")


Form = tuple[tuple[int, ...], DType, bool]
"""An operand's shape and type, and whether it is stored sparsely."""
Index = tuple[int | slice, ...]
_PLAIN = frozenset(t.numpy for t in DType if t is not DType.BFLOAT16)
"""The types of arrays that are read as they are. The one of BFLOAT16 equals that of uint16."""


@dataclass(frozen=True, slots=True)
class EinsumPlan:
    """A planned expression.

    Attributes:
        plan: The plan over operands without stretched axes.
        names: The name of each operand in the plan.
        indices: The index of each operand that drops its stretched axes; None without such axes.
    """

    plan: Plan
    names: tuple[str, ...]
    indices: tuple[Index | None, ...]


def run_einsum(
    ctx: Context, text: str, operands: Sequence[object], combine: str, reduce: str
) -> np.ndarray:
    """Evaluates an einsum expression over arrays, as numpy.einsum does.

    Args:
        ctx: The session.
        text: The expression, such as 'ij,jk->ik', with ellipsis or implicit output.
        operands: One array for each term; axes of length 1 stretch as in NumPy.
        combine: The name of the scalar function ⊗, or of one that CREATE FUNCTION defines.
        reduce: The name of the aggregate ⊕, or of one that CREATE AGGREGATE defines.

    Returns:
        A new array; empty sums are 0, see `Algebra.empty`.

    Raises:
        InterfaceError: The expression is no string, or an operand is no array.
        ProgrammingError: The expression does not fit the arrays, or an operation their types.
        DataError: MIN or MAX of no integers.
        OperationalError: The connection's transaction is aborted.
    """
    if not isinstance(text, str):
        raise InterfaceError(f"An einsum expression is a str, not a {type(text).__name__}")

    def macros() -> MacroExpander:
        ctx.store.refresh()  # another connection may have changed the function
        return query_binder(ctx).macros

    algebra = Algebra.named(combine, reduce, macros)
    ctx.duck.refuse_aborted()
    if ctx.settings.plan is not None:
        plan_files.refresh(ctx)
    with enough_memory:
        return _evaluate(ctx, text, operands, algebra)


def _evaluate(ctx: Context, text: str, operands: Sequence[object], algebra: Algebra) -> np.ndarray:
    known = [_operand(a) for a in operands]
    is_users = algebra.function is not None or algebra.aggregate is not None
    version = ctx.store.names if is_users else 0
    by = algebra.combine, algebra.reduce, version
    kinds = tuple(kind for kind, _ in known)
    key = ("einsum", text, by, kinds, ctx.settings.float_math, ctx.settings.jit)
    planned = ctx.plans.get(key)
    if not isinstance(planned, EinsumPlan):
        planned = _plan(ctx, text, [_form(a) for a in operands], algebra)
        ctx.plans.put(key, planned)
    inputs: dict[str, Fields] = {}
    for name, (_, fields), index in zip(planned.names, known, planned.indices, strict=True):
        inputs[name] = fields if index is None else LocalFields({"val": fields["val"][index]})
    plan = planned.plan
    (root,) = plan.program.run(inputs, ctx.tick)
    result = loaded(np.asarray(root["val"]), plan.schema.dtype("val"))
    for flag in (PRESENT, valid("val")):
        mask = root.get(flag)
        if mask is not None and not mask.all():
            empty = algebra.empty(plan.schema.dtype("val"))
            result = np.where(mask, result, empty).astype(result.dtype, copy=False)
    shared = any(
        np.may_share_memory(result, inputs[name]["val"])
        for name in plan.program.aliased_inputs
        if not inputs[name].is_sparse
    )
    return result if result.flags.writeable and not shared else result.copy()


def _operand(array: object) -> tuple[object, Fields]:
    """The part of a plan's key for an operand, and the operand's fields.

    Raises:
        InterfaceError: The operand is no array.
    """
    if type(array) is np.ndarray and array.dtype in _PLAIN:
        return (array.shape, array.dtype), LocalFields({"val": array})
    relation = _relation(array)
    return _form_of(relation), relation.fields


def _relation(array: object) -> Stored:
    return array_relation(array, fill=0 if is_sparse(array) else None)


def _form(array: object) -> Form:
    return _form_of(_relation(array))


def _form_of(relation: Stored) -> Form:
    schema = relation.schema
    return schema.shape, schema.values[0].dtype, relation.fields.is_sparse


def _plan(ctx: Context, text: str, forms: Sequence[Form], algebra: Algebra) -> EinsumPlan:
    spec = parse_spec(text, [len(shape) for shape, _, _ in forms])
    extents: dict[str, int] = {}
    for labels, (shape, _, _) in zip(spec.inputs, forms, strict=True):
        for label, n in zip(labels, shape, strict=True):
            known = extents.get(label, 1)
            if known != n and 1 not in (known, n):
                raise ProgrammingError(f"einsum label '{label}' has the extents {known} and {n}")
            extents[label] = known if n == 1 else n
    relations: list[Relation] = []
    terms: list[tuple[str, ...]] = []
    indices: list[Index | None] = []
    for n, (labels, (shape, dtype, sparse)) in enumerate(zip(spec.inputs, forms, strict=True)):
        stretched = [
            length == 1 and extents[x] != 1 for x, length in zip(labels, shape, strict=True)
        ]
        index = tuple(0 if s else slice(None) for s in stretched)
        indices.append(index if any(stretched) else None)
        axes = [(x, e) for x, e, s in zip(labels, shape, stretched, strict=True) if not s]
        keys = tuple(Key(f"d{m}", 0, e) for m, (_, e) in enumerate(axes))
        node = Input(f"x{n}", Schema(keys, (Field("val", dtype),)), sparse=sparse)
        columns = [Column(k.name, DType.BIGINT, key=k.name) for k in keys]
        relations.append(Relation(node, (*columns, Column("val", dtype, field="val"))))
        terms.append(tuple(x for x, _ in axes))
    stays = ctx.settings.float_math == "float"
    relation = einsum_relation(Spec(tuple(terms), spec.output), relations, stays, algebra)
    catalog = BinderCatalog(
        ctx.store, ctx.settings, ctx.in_scope, ctx.tick, BoundParameters(), memory=ctx.memory
    )
    ctx.plans.planned += 1
    names = tuple(f"x{n}" for n in range(len(forms)))
    return EinsumPlan(make_plan(relation, catalog, []), names, tuple(indices))
