"""Interprets the graph that torch.export makes of a module."""

from __future__ import annotations

import operator as python_operator
import os
import re
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.frontends.trace.arguments import leaves, mapped
from einsql.frontends.trace.array import TracedArray, lifted
from einsql.frontends.trace.modules import elements, layers, places, windows
from einsql.frontends.trace.modules.registry import ELEMENTWISE, OPERATORS, numpy_dtype
from einsql.frontends.trace.refusals import way_out
from einsql.frontends.trace.source import MODULE
from einsql.frontends.trace.steps import Graph, Weight
from einsql.storage.host_arrays import array_relation, as_numpy

_TABLES = (elements, layers, places, windows)  # they fill OPERATORS
_LEAVES = "torch.nn.modules."
_CASTS = {"to", "_to_copy", "type_as"}
_SHORT = {"torch.float16": DType.HALF, "torch.bfloat16": DType.BFLOAT16}
"""Types to which a module's own casts round; other two-byte floats are computed as float32."""


def run_module(module: Any, args: Sequence[Any], traced: Sequence[Any], graph: Graph) -> Any:
    """Traces a module over traced arguments.

    Args:
        module: A torch.nn.Module, which is traced in its current mode.
        args: The arguments, arrays or PyTorch's tensors.
        traced: The same, traced.
        graph: The program; the module's parameters become tensors of it.

    Raises:
        NotSupportedError: torch.export refuses it, or an operator has no meaning here.
    """
    import torch  # imported only to trace modules

    tensors = tuple(
        a
        if isinstance(a, torch.Tensor) or not _is_array(a)
        else torch.from_numpy(np.ascontiguousarray(a))
        for a in args
    )
    graph.silent = True
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about PyTorch
            exported = torch.export.export(module, tensors)
            if _unknown(exported.graph_module) or _writes(exported.graph_module):
                exported = exported.run_decompositions({})
            if _unknown(exported.graph_module):
                exported = exported.run_decompositions()
    except Exception as error:  # any exception means that torch.export cannot export it
        reason = str(error).strip().split("\n")[0][:200]
        hint = "Does module(…) run with these arguments? Their shapes and types have to fit it."
        if "data-dependent" in reason:
            hint = "Decisions by values of tensors have no place in a graph."
        raise NotSupportedError(
            f"torch.export cannot trace the module: {reason}", hint=hint
        ) from error
    _refuse_changes(exported)
    values = _values(module, exported, traced, graph)
    played = MODULE.set(True)
    try:
        outputs = _play(exported.graph_module, values, graph)
    finally:
        MODULE.reset(played)
    return torch.utils._pytree.tree_unflatten(list(outputs), exported.call_spec.out_spec)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _operator(target: Any) -> str:
    name = getattr(target, "name", None)
    if not callable(name):
        return str(getattr(target, "__name__", target))
    return str(name()).partition("::")[2].partition(".")[0]


def _unknown(module: Any) -> bool:
    calls = [n.target for n in module.graph.nodes if n.op == "call_function"]
    return any(t is not python_operator.getitem and _operator(t) not in OPERATORS for t in calls)


def _writes(module: Any) -> bool:
    """True if operators change their arguments, which others may read as well."""
    schemas = (getattr(n.target, "_schema", None) for n in module.graph.nodes)
    return any(s is not None and s.is_mutable for s in schemas)


def _refuse_changes(exported: Any) -> None:
    from torch.export.graph_signature import OutputKind

    for spec in exported.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            kept = spec.kind is OutputKind.BUFFER_MUTATION
            raise NotSupportedError(
                f"The module writes into {spec.target or 'an argument'}",
                hint="Call module.eval() before, where training alone does so; else let the module "
                "take what it changes as an argument, and give the new value as a result."
                if kept
                else "Let it work on a copy: x.clone().",
            )


def _values(module: Any, exported: Any, traced: Sequence[Any], graph: Graph) -> list[Any]:
    """The value of each placeholder: a parameter, buffer, constant or argument."""
    from torch.export.graph_signature import InputKind

    arguments = iter(leaves(traced))
    inputs: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(next(arguments))
        elif spec.kind is InputKind.PARAMETER:
            weight = _weight(module, spec.target)
            inputs.append(_parameter(weight(), spec.target, graph, weight))
        elif spec.kind is InputKind.BUFFER and spec.target in exported.state_dict:
            weight = _weight(module, spec.target)
            inputs.append(_buffer(weight(), spec.target, graph, weight))
        elif spec.target in exported.constants:
            inputs.append(_buffer(exported.constants[spec.target], spec.target, graph))
        else:
            raise NotSupportedError(f"{spec.target} is no tensor")
    return inputs


def _name(path: str) -> str:
    name = path.replace(".", "_")
    return name if name.isidentifier() else f"p_{name}"


def _weight(module: Any, path: str) -> Weight:
    """A function that returns the tensor which a module has at a path when it is called."""
    inner, _, leaf = path.rpartition(".")
    return partial(getattr, module.get_submodule(inner), leaf)


def _parameter(tensor: Any, path: str, graph: Graph, weight: Weight | None = None) -> TracedArray:
    """A parameter as a tensor of the program, sharing its memory."""
    array = as_numpy(tensor)
    relation = array_relation(array)
    (field,) = relation.schema.values
    step = graph.tensor(_name(path), array, relation.schema.shape, field.dtype)
    if weight is not None and step.name is not None:
        graph.weights[step.name] = weight
    return TracedArray(graph, step)


def _buffer(tensor: Any, path: str, graph: Graph, weight: Weight | None = None) -> TracedArray:
    """A buffer or constant; masks and counters become conditions on keys."""
    array = as_numpy(tensor)
    if array.dtype.kind == "f" and np.isfinite(array).all():
        return _parameter(tensor, path, graph, weight)
    return lifted(graph, array)


def _play(module: Any, values: Sequence[Any], graph: Graph) -> Sequence[Any]:
    """Calls the operators of a graph in order, and returns its outputs."""
    computed: dict[Any, Any] = {}
    waiting = iter(values)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            computed[node] = next(waiting)
        elif node.op == "get_attr":
            computed[node] = getattr(module, node.target)
        elif node.op == "call_function":
            args, options = _arguments(node.args, computed), _arguments(node.kwargs, computed)
            computed[node] = _called(node, args, options, graph)
        elif node.op == "output":
            outputs = _arguments(node.args[0], computed)
            return outputs if isinstance(outputs, list | tuple) else [outputs]
    raise ProgrammingError("The module's graph gives nothing")


def _arguments(value: Any, computed: dict[Any, Any]) -> Any:
    return mapped(value, lambda v: computed.get(v, v) if hasattr(v, "op") else v)


def _called(node: Any, args: Any, options: Any, graph: Graph) -> Any:
    if node.target is python_operator.getitem:
        output = args[0][args[1]]
        if output is None and node.users:
            raise NotSupportedError(
                f"The result {args[1]} of {node.args[0].target} cannot be traced{_where(node)}",
                hint="Its first result can; compute what else is needed from that.",
            )
        return output
    name = _operator(node.target)
    if name == "wrap_with_set_grad_enabled":
        return _play(args[1], args[2:], graph)
    operator = OPERATORS.get(name)
    if operator is None:
        raise NotSupportedError(
            f"The operator {node.target} cannot be traced{_where(node)}", hint=way_out(name)
        )
    try:
        if name in ELEMENTWISE:
            args = _met(args)
        output = operator(*args, **options)
    except Error as error:
        raise type(error)(
            f"{node.target}: {error.reason}{_where(node)}", hint=error.hint
        ) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise NotSupportedError(
            f"{node.target} cannot be traced: {error}{_where(node)}", hint=way_out(name)
        ) from error
    return _settled(node, output)


def _met(args: Sequence[Any]) -> list[Any]:
    """Arrays in the type at which PyTorch lets them meet: a float meets an integer as itself."""
    arrays = [a for a in args if isinstance(a, TracedArray | np.ndarray)]
    kind = max((a.dtype.kind for a in arrays), key="bif".index, default="f")
    full = [a for a in arrays if a.ndim and a.dtype.kind == kind]
    dtype = np.result_type(*(a.dtype for a in full or arrays if a.dtype.kind == kind))
    if kind != "f" and any(type(a) is float for a in args):
        dtype = np.dtype(np.float32)
    return [
        a.astype(dtype) if isinstance(a, TracedArray | np.ndarray) and a.dtype != dtype else a
        for a in args
    ]


def _settled(node: Any, output: Any) -> Any:
    """The result in the type the graph says, under the name of the module that gives it."""
    expected = node.meta.get("val")
    if isinstance(output, np.generic):
        output = np.asarray(output)
    if isinstance(output, TracedArray | np.ndarray) and hasattr(expected, "dtype"):
        short = _SHORT.get(str(expected.dtype))
        if short and isinstance(output, TracedArray) and _operator(node.target) in _CASTS:
            output = output.astype(short.numpy)
        dtype = numpy_dtype(expected.dtype)
        if output.dtype != dtype and output.dtype.kind in "fib":
            output = output.astype(dtype)
    if isinstance(output, TracedArray) and output.step.name is None:
        output.step.name = _module(node)
    return output


def _module(node: Any) -> str | None:
    """The path of the layer that an operator is all of."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or not str(stack[-1][1]).startswith(_LEAVES):
        return None
    name = str(stack[-1][0]).replace(".", "_")
    return name if name.isidentifier() else f"{node.name.rstrip('_0123456789')}_{name}"


def _where(node: Any) -> str:
    """The layer that an operator belongs to, and the user's line that calls it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = (str(stack[-1][0]), str(stack[-1][1]).rpartition(".")[2]) if stack else ("", "")
    layer = f" in the layer {path}, a {kind}" if path else ""
    frames = re.findall(_FRAME, str(node.meta.get("stack_trace") or ""))
    own = [f for f in frames if "/torch/" not in f[0]] or frames
    if own:
        file, line, function, text = own[-1]
        layer += f" (line {line} of {os.path.basename(file)}, in {function}: {text.strip()})"
    return layer


_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)\n(.*)')
