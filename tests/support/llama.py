"""LLaMA in plain NumPy and plain PyTorch, with a key/value cache: the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPSILON, BASE = 1e-5, 100000.0


@dataclass(frozen=True)
class Shape:
    """Of a model: layers, width, groups of heads, heads of a group, width of a head."""

    layers: int
    width: int
    groups: int
    heads: int
    depth: int
    hidden: int
    words: int


TINY = Shape(layers=2, width=96, groups=3, heads=3, depth=64, hidden=128, words=50)


def members(layer: int) -> dict[str, str]:
    """What GGUF calls the weights of a layer."""
    names = {
        "n1": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
        "n2": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    }  # fmt: skip
    return {short: f"blk.{layer}.{name}.weight" for short, name in names.items()}


def random_weights(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a model, by GGUF's names; matrices are (outputs, inputs)."""
    generator = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        found: np.ndarray = generator.standard_normal((rows, columns)) / np.sqrt(columns)
        return found.astype(np.float32)

    def gains() -> np.ndarray:
        return (1 + generator.standard_normal(shape.width) / 4).astype(np.float32)

    attended, kept = shape.groups * shape.heads * shape.depth, shape.groups * shape.depth
    found = {"token_embd.weight": matrix(shape.words, shape.width), "output_norm.weight": gains()}
    for layer in range(shape.layers):
        name = members(layer)
        found |= {name["n1"]: gains(), name["n2"]: gains()}
        found |= {
            name["q"]: matrix(attended, shape.width),
            name["o"]: matrix(shape.width, attended),
        }
        found |= {name[x]: matrix(kept, shape.width) for x in "kv"}
        found |= {name[x]: matrix(shape.hidden, shape.width) for x in ("gate", "up")}
        found[name["down"]] = matrix(shape.width, shape.hidden)
    return found


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a GGUF file in float32."""
    from gguf import GGUFReader, dequantize

    found = {}
    for tensor in GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        found[tensor.name] = np.ascontiguousarray(values.reshape(tensor.shape[::-1]))
    return found


def angles(length: int, depth: int, base: float) -> np.ndarray:
    """Of each position and pair of elements: float64 (length, depth / 2)."""
    rates = base ** (-np.arange(depth // 2) / (depth // 2))
    return np.arange(length)[:, None] * rates


class NumPyModel:
    """The model in NumPy; `logits` goes on where the last call ended."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        shape: Shape,
        base: float = BASE,
        length: int = 1024,
    ) -> None:
        self.shape, self.weights = shape, weights
        self.layers = [{k: weights[v] for k, v in members(n).items()} for n in range(shape.layers)]
        turn = angles(length, shape.depth, base)
        self.cos, self.sin = (f(turn).astype(np.float32) for f in (np.cos, np.sin))
        cache = (shape.layers, shape.groups, length, shape.depth)
        self.keys, self.values = np.zeros(cache, np.float32), np.zeros(cache, np.float32)
        self.at = 0

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Of the token after the given ones: float32 (words,)."""
        s, first, last = self.shape, self.at, self.at + len(tokens)
        x = self.weights["token_embd.weight"][tokens]
        hidden = np.arange(last)[None, :] > np.arange(first, last)[:, None]
        for n, w in enumerate(self.layers):
            y = self._normed(x, w["n1"])
            q = self._turned((y @ w["q"].T).reshape(len(x), -1, s.depth), first)
            k = self._turned((y @ w["k"].T).reshape(len(x), -1, s.depth), first)
            v = (y @ w["v"].T).reshape(len(x), -1, s.depth)
            self.keys[n, :, first:last] = k.transpose(1, 0, 2)
            self.values[n, :, first:last] = v.transpose(1, 0, 2)
            q = q.reshape(len(x), s.groups, s.heads, s.depth).transpose(1, 2, 0, 3)
            scores = q @ self.keys[n, :, None, :last].swapaxes(-1, -2) / np.float32(s.depth**0.5)
            scores = np.where(hidden, np.float32(-np.inf), scores)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            o = (scores @ self.values[n, :, None, :last]).transpose(2, 0, 1, 3)
            x = x + o.reshape(len(x), -1) @ w["o"].T
            y = self._normed(x, w["n2"])
            gate = y @ w["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w["up"].T)) @ w["down"].T
        self.at = last
        final = self._normed(x[-1:], self.weights["output_norm.weight"])
        found: np.ndarray = (final @ self.weights["token_embd.weight"].T)[0]
        return found

    def _normed(self, x: np.ndarray, gains: np.ndarray) -> np.ndarray:
        squares = (x * x).mean(-1, keepdims=True) + np.float32(EPSILON)
        made: np.ndarray = x / np.sqrt(squares) * gains
        return made

    def _turned(self, x: np.ndarray, first: int) -> np.ndarray:
        """Pairs of neighbours (2p, 2p + 1) turned by their angle, as GGUF orders rows."""
        cos = self.cos[first : first + len(x), None]
        sin = self.sin[first : first + len(x), None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


class TorchModel:
    """The same in PyTorch's eager mode, written as one would."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        shape: Shape,
        base: float = BASE,
        length: int = 1024,
    ) -> None:
        import torch

        self.torch: Any = torch
        self.shape = shape
        self.weights = {k: torch.from_numpy(v) for k, v in weights.items()}
        self.layers = [
            {k: self.weights[v] for k, v in members(n).items()} for n in range(shape.layers)
        ]
        turn = torch.from_numpy(angles(length, shape.depth, base))
        self.cos, self.sin = turn.cos().float(), turn.sin().float()
        cache = (shape.layers, shape.groups, length, shape.depth)
        self.keys, self.values = torch.zeros(cache), torch.zeros(cache)
        self.at = 0

    def logits(self, tokens: list[int]) -> Any:
        """Of the token after the given ones: (words,)."""
        torch, s = self.torch, self.shape
        first, last = self.at, self.at + len(tokens)
        linear: Callable[..., Any] = torch.nn.functional.linear
        with torch.inference_mode():
            x = self.weights["token_embd.weight"][torch.tensor(tokens)]
            hidden = torch.arange(last)[None, :] > torch.arange(first, last)[:, None]
            for n, w in enumerate(self.layers):
                y = self._normed(x, w["n1"])
                q = self._turned(linear(y, w["q"]).view(len(x), -1, s.depth), first)
                k = self._turned(linear(y, w["k"]).view(len(x), -1, s.depth), first)
                v = linear(y, w["v"]).view(len(x), -1, s.depth)
                self.keys[n, :, first:last] = k.transpose(0, 1)
                self.values[n, :, first:last] = v.transpose(0, 1)
                q = q.view(len(x), s.groups, s.heads, s.depth).permute(1, 2, 0, 3)
                scores = q @ self.keys[n, :, None, :last].transpose(-1, -2) / s.depth**0.5
                if len(x) > 1:
                    scores = scores.masked_fill(hidden, float("-inf"))
                o = torch.softmax(scores, -1) @ self.values[n, :, None, :last]
                x = x + linear(o.permute(2, 0, 1, 3).reshape(len(x), -1), w["o"])
                y = self._normed(x, w["n2"])
                x = x + linear(
                    torch.nn.functional.silu(linear(y, w["gate"])) * linear(y, w["up"]), w["down"]
                )
            self.at = last
            final = self._normed(x[-1:], self.weights["output_norm.weight"])
            return linear(final, self.weights["token_embd.weight"])[0]

    def _normed(self, x: Any, gains: Any) -> Any:
        return x * self.torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * gains

    def _turned(self, x: Any, first: int) -> Any:
        cos = self.cos[first : first + len(x), None]
        sin = self.sin[first : first + len(x), None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return self.torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).view(x.shape)
