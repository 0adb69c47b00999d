"""The encoder of `benchmarks.encoder` as an ONNX model, written node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.matrices import Array

WIDTH, HEADS, DEPTH = 384, 12, 32
_OPSET = 20
_IR = 10
"""A version of the format that onnxruntime reads."""


class _Graph:
    """Nodes and constants that grow by operations."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        return name

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """`x` times a weight of shape (outputs, inputs), plus a bias."""
        product = self.add("MatMul", x, self.constant(weight.T))
        return self.add("Add", product, self.constant(bias))

    def norm(self, x: str, gain: Array, constant: Array) -> str:
        inputs = (x, self.constant(gain), self.constant(constant))
        return self.add("LayerNormalization", *inputs, axis=-1, epsilon=1e-5)


def model(of: dict[str, Array], layers: int) -> Any:
    """The model over int64 tokens of any number of sentences and tokens."""
    graph = _Graph()
    ends = np.array([0], np.int64)
    shape = graph.add("Shape", "tokens")
    length = graph.add("Slice", shape, graph.constant(ends + 1), graph.constant(ends + 2))
    positions = graph.add(
        "Slice", graph.constant(of["position"]), graph.constant(ends), length, graph.constant(ends)
    )
    words = graph.add("Gather", graph.constant(of["word"]), "tokens")
    x = graph.norm(graph.add("Add", words, positions), of["g"], of["c"])
    for n in range(layers):
        x = _layer(graph, x, {k[: -len(str(n))]: v for k, v in of.items() if k.endswith(str(n))})
    axes = graph.constant(np.array([1], np.int64))
    graph.add("ReduceMean", x, axes, output="found", keepdims=0)
    whole = helper.make_graph(
        graph.nodes,
        "encoder",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["b", "t"])],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, ["b", WIDTH])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=_IR)


def _layer(graph: _Graph, x: str, w: dict[str, Array]) -> str:
    split = graph.constant(np.array([0, 0, HEADS, DEPTH], np.int64))
    joined = graph.constant(np.array([0, 0, WIDTH], np.int64))

    def heads(name: str, order: tuple[int, ...]) -> str:
        y = graph.linear(x, w[f"w{name}"].reshape(WIDTH, WIDTH), w[f"b{name}"].reshape(-1))
        return graph.add("Transpose", graph.add("Reshape", y, split), perm=order)

    q, k, v = heads("q", (0, 2, 1, 3)), heads("k", (0, 2, 3, 1)), heads("v", (0, 2, 1, 3))
    root = graph.constant(np.array(np.sqrt(DEPTH), np.float32))
    scores = graph.add("Div", graph.add("MatMul", q, k), root)
    a = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
    a = graph.add("Reshape", graph.add("Transpose", a, perm=(0, 2, 1, 3)), joined)
    o = graph.linear(a, w["wo"].reshape(WIDTH, WIDTH), w["bo"])
    y = graph.norm(graph.add("Add", o, x), w["g1"], w["c1"])
    h = graph.add("Gelu", graph.linear(y, w["w1"], w["b1"]))
    z = graph.linear(h, w["w2"], w["b2"])
    return graph.norm(graph.add("Add", z, y), w["g2"], w["c2"])
