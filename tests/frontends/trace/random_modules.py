"""Random PyTorch modules: layers and operations in a row, over inputs with extremes."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")
nn, functional = torch.nn, torch.nn.functional
Tensor = Any
ACTIVATIONS: tuple[Callable[[], Any], ...] = (
    nn.ReLU, lambda: nn.GELU("tanh"), nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Mish,
    nn.Softplus, nn.LeakyReLU, nn.Hardswish, nn.Hardsigmoid, nn.ReLU6, nn.LogSigmoid, nn.SELU,
    nn.CELU, nn.Softsign, nn.Tanhshrink, nn.Hardtanh, nn.PReLU, lambda: nn.Threshold(0.1, -1.0),
    lambda: nn.Softshrink(0.3), lambda: nn.Hardshrink(0.3),
)  # fmt: skip
OPERATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x.logsumexp(-1, keepdim=True),
    lambda x: x - x.mean(-1, keepdim=True), lambda x: x.cumsum(-1), lambda x: x.nan_to_num(0.5),
    lambda x: torch.where(x > 0, x, x * 0.1), lambda x: x.clamp(-1, 1), lambda x: x.abs().sqrt(),
    lambda x: x.masked_fill(x > 1, -torch.inf), lambda x: x.flip(-1), lambda x: x.roll(1, -1),
    lambda x: torch.cat([x, x * 2], -1), lambda x: x[..., ::2], lambda x: x.round().sign(),
    lambda x: x.amax(-1, keepdim=True) - x, lambda x: x * x.argmax(-1, keepdim=True),
    lambda x: x.var(-1, keepdim=True) + x, lambda x: x.square().sum(-1, keepdim=True).rsqrt() * x,
    lambda x: torch.maximum(x, x.flip(-1)), lambda x: x.pow(3), lambda x: x / (x.norm() + 1),
    lambda x: functional.normalize(x, dim=-1), lambda x: x.floor() % 3, lambda x: x.expm1().log1p(),
    lambda x: functional.pad(x, (1, 2), value=0.5), lambda x: x.transpose(0, 1).contiguous(),
    lambda x: x.unsqueeze(1).repeat_interleave(2, 1).sum(1), lambda x: (x > 0).to(x.dtype) * x,
    lambda x: torch.stack([x, -x], -1).flatten(-2), lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.masked_fill(x == x, -torch.inf).softmax(-1) + x, lambda x: x.max(-1, True).values,
    lambda x: torch.special.erfc(x), lambda x: x.gather(-1, x.argmin(-1, True)) + x,
    lambda x: x.tril(), lambda x: x.clone().mul_(2).add_(1), lambda x: torch.lerp(x, -x, 0.25),
)  # fmt: skip


class Operation(nn.Module):  # type: ignore[misc, name-defined]  # torch is an Any here
    """A function as a module."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


class Attention(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """Attention of a sequence to itself, with one of the usual masks."""

    def __init__(self, width: int, heads: int, mask: str) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = None
        if self.mask == "truths":
            mask = torch.arange(s)[:, None] > torch.arange(s)
        if self.mask == "numbers":
            mask = torch.zeros(s, s).masked_fill(torch.arange(s)[:, None] < 2, -torch.inf)
            mask = mask.to(x.dtype)
        causal = self.mask == "causal"
        y = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return y.transpose(1, 2).reshape(b, s, e)


def _convolution(r: random.Random, many: int, shape: list[int]) -> Any:
    sizes = [r.randint(1, min(3, n)) for n in shape[2:]]
    groups = r.choice([g for g in (1, 2, shape[1]) if shape[1] % g == 0])
    out = groups * r.randint(1, 3)
    steps, gaps = [r.randint(1, 2) for _ in sizes], [r.choice((1, 1, 2)) for _ in sizes]
    bias = r.random() < 0.7
    if r.random() < 0.3:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[many - 1]
        edges = [r.randint(0, 1) for _ in sizes]
        return kind(shape[1], out, sizes, steps, edges, 0, groups, bias, gaps)
    modes = ("zeros", "zeros", "reflect", "circular", "replicate")
    kind = (nn.Conv1d, nn.Conv2d)[many - 1]
    edges = [r.randint(0, 1) for _ in sizes]
    return kind(shape[1], out, sizes, steps, edges, gaps, groups, bias, r.choice(modes))


def _window(r: random.Random, many: int, shape: list[int]) -> Any:
    choices: list[Callable[[], Any]] = [
        lambda: _convolution(r, many, shape), lambda: _convolution(r, many, shape),
        lambda: (nn.MaxPool1d, nn.MaxPool2d)[many - 1](2, r.randint(1, 2), r.randint(0, 1)),
        lambda: (nn.AvgPool1d, nn.AvgPool2d)[many - 1](
            2, r.randint(1, 2), r.randint(0, 1), count_include_pad=r.random() < 0.5),
        lambda: (nn.BatchNorm1d, nn.BatchNorm2d)[many - 1](shape[1]),
        lambda: (nn.InstanceNorm1d, nn.InstanceNorm2d)[many - 1](shape[1]),
        lambda: nn.GroupNorm(1, shape[1]),
        lambda: (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[many - 1](1),
        lambda: nn.Upsample(scale_factor=2),
    ]  # fmt: skip
    return r.choice(choices)()


def _row(r: random.Random, shape: list[int]) -> Any:
    width = shape[-1]
    choices: list[Callable[[], Any]] = [
        lambda: nn.Linear(width, r.randint(1, 6), r.random() < 0.7),
        lambda: nn.LayerNorm(width), lambda: nn.RMSNorm(width), lambda: nn.Softmax(-1),
        lambda: nn.Flatten(r.randint(0, 1)), lambda: nn.Dropout(0.5),
    ]  # fmt: skip
    if len(shape) == 3:
        heads = r.choice([h for h in (1, 2, 3) if width % h == 0])
        mask = r.choice(("none", "causal", "truths", "numbers"))
        choices += [lambda: Attention(width, heads, mask)] * 3
        choices.append(
            lambda: nn.TransformerEncoderLayer(
                width, heads, 5, batch_first=True, norm_first=r.random() < 0.5
            )
        )
        choices += [lambda: _window(r, 1, shape)] * 2
    if len(shape) == 2 and r.random() < 0.2:
        return nn.Linear(width, 2)
    return r.choice(choices)()


def module(seed: int) -> tuple[Any, Tensor]:
    """A random module in evaluation, and an input of it."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    rank = r.choice((2, 3, 3, 4, 4))
    shape = [r.randint(1, 4) for _ in range(rank)]
    shape = [shape[0], *(n + r.randint(1, 4) for n in shape[1:])]
    x = torch.randn(shape)
    if r.random() < 0.3:
        for _ in range(3):
            x.view(-1)[r.randrange(x.numel())] = r.choice(
                (torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 30.0, -30.0)
            )
    layers: list[Any] = []
    here = x
    for _ in range(r.randint(1, 5)):
        shape = list(here.shape)
        kind = r.random()
        try:
            if kind < 0.25:
                layer = r.choice(ACTIVATIONS)()
            elif kind < 0.5:
                layer = Operation(r.choice(OPERATIONS))
            elif len(shape) == 4:
                layer = _window(r, 2, shape)
            else:
                layer = _row(r, shape)
            layer = layer.eval()
            with torch.no_grad():
                after = layer(here)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            continue  # such a layer does not fit here
        if after.numel() and after.dim() >= 2:
            layers.append(layer)
            here = after
    return nn.Sequential(*layers).eval(), x
