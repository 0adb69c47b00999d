"""Compiles the text of a kernel to object code by LLVM.

The compiler process imports this module, or a process that can start no other one.
"""

from __future__ import annotations

import ast
import math
import os
from functools import lru_cache
from typing import Any

from llvmlite import binding, ir

from einsql.core.records import dataclass
from einsql.errors import InternalError
from einsql.kernels.compiler import cpu_features
from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.kernel_types import WORD
from einsql.kernels.compiler.language import Text, Unsupported, njit
from einsql.kernels.compiler.object_code import ObjectCode
from einsql.kernels.compiler.operations import cast, numbers, struct
from einsql.kernels.compiler.translated_expressions import Typed
from einsql.kernels.compiler.translator import Module

_ENTRY = "kernel"
_SPEED = 3
"""LLVM's level of optimisation."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The processor for which code is generated.

    Attributes:
        machine: LLVM's description of this processor.
        triple: Its architecture, vendor and system.
        layout: The sizes and alignments of types.
    """

    machine: Any
    triple: str
    layout: str


def object_code(name: str, source: str) -> ObjectCode:
    """Compiles the function `kernel` of a generated module.

    Args:
        name: The name of the module in tracebacks.
        source: The module's text; the function has a signature.

    Raises:
        Exception: The text does not compile, or is beyond the language of kernels.
    """
    signature, module = optimised(name, source)
    returned = signature.return_type
    return ObjectCode(
        entry=_ENTRY,
        parameters=tuple(map(_parameter, signature.args)),
        returns=None if returned == types.void else str(returned),
        code=_target().machine.emit_object(module),
    )


def optimised(name: str, source: str) -> tuple[types.Signature, Any]:
    """The signature and LLVM's module of a kernel; see `object_code`."""
    kernel, target = _kernel(name, source), _target()
    assert kernel.signature is not None
    module = binding.parse_assembly(str(_llvm(kernel, target)))
    module.verify()
    _optimise(module, target)
    return kernel.signature, module


def _kernel(name: str, source: str) -> Text:
    """The kernel's function, with the names of its module; it need not import `math` and `np`."""
    tree = ast.parse(source)
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
    tree.body = [statement for statement in tree.body if statement not in functions]
    names: dict[str, Any] = {"math": math, "njit": njit, "np": numbers}
    exec(compile(tree, f"<einsql {name}>", "exec"), names)
    names |= {f.name: Text(f, names) for f in functions}
    kernel = names.get("kernel")
    if not isinstance(kernel, Text):
        raise Unsupported("a module without a kernel")
    (decorator,) = kernel.tree.decorator_list
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.args[0], ast.Constant)):
        raise Unsupported("a kernel without a signature")
    return Text(kernel.tree, names, types.parsed(decorator.args[0].value))


def _llvm(kernel: Text, target: _Target) -> ir.Module:
    """The kernel's LLVM code: its functions, and the entry, which `machine_code.Kernel` calls."""
    signature = kernel.signature
    assert signature is not None
    llvm = ir.Module(_ENTRY)
    llvm.triple, llvm.data_layout = target.triple, target.layout
    returned = signature.return_type
    status, word = ir.IntType(32), WORD.as_pointer()
    result = word if returned == types.void else returned.stored.as_pointer()
    arguments = [result, word]
    for kind in signature.args:
        arguments += _words(kind)
    entry = ir.Function(llvm, ir.FunctionType(status, arguments), _ENTRY)
    entry.attributes.add("nounwind")
    for number in (0, 1):
        entry.args[number].add_attribute("noalias")
    builder = ir.IRBuilder(entry.append_basic_block())
    words = list(entry.args[2:])
    given: list[Typed] = []
    for kind in signature.args:
        own, words = words[: len(_words(kind))], words[len(_words(kind)) :]
        if isinstance(kind, types.Array):
            own = [struct(builder, kind, own[4 : 5 + kind.ndim])]
        given.append(Typed(kind, own[0]))
    code = Module(llvm).call(builder, kernel, given)
    if returned != types.void:
        answer = cast(builder, code.code, code.type, returned)
        if returned == types.boolean:
            answer = builder.zext(answer, returned.stored)
        builder.store(answer, entry.args[0])
    builder.ret(status(0))
    return llvm


def _words(kind: types.Type) -> list[Any]:
    """The LLVM types of a parameter; see `machine_code.array_words`."""
    if not isinstance(kind, types.Array):
        return [kind.code]
    address = kind.dtype.stored.as_pointer()
    return [WORD, WORD, WORD, WORD, address, *[WORD] * (2 * kind.ndim)]


def _parameter(kind: types.Type) -> tuple[str, int | None]:
    if isinstance(kind, types.Array):
        return str(kind.dtype), kind.ndim
    if kind not in (types.int64, types.int32, types.float64, types.float32):
        raise InternalError(f"a kernel takes {kind}")
    return str(kind), None


@lru_cache(maxsize=1)
def _target() -> _Target:
    """This processor; Numba's environment variables restrict it."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple = binding.get_process_triple()
    target = binding.Target.from_triple(triple)
    machine = target.create_target_machine(
        cpu=os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name(),
        features=cpu_features.allowed(),
        opt=_SPEED,
        reloc="static" if triple.startswith(("x86", "i386")) else "default",
        codemodel="jitdefault",
        jit=True,
    )
    return _Target(machine, triple, str(machine.target_data))


def _optimise(module: Any, target: _Target) -> None:
    options = binding.create_pipeline_tuning_options(speed_level=_SPEED)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = binding.create_pass_builder(target.machine, options)
    builder.getModulePassManager().run(module, builder)
