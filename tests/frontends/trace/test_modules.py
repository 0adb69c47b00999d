"""PyTorch's modules, traced, give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

torch = pytest.importorskip("torch", reason="traces PyTorch's modules")
nn, functional = torch.nn, torch.nn.functional
Tensor = Any


def tensor(*shape: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*shape)


def same(module: Any, *inputs: Tensor, near: float = 2e-5) -> einsql.Traced:
    """Traces a module, runs it, and compares with itself."""
    module = module.eval()
    with torch.no_grad():
        expected = module(*inputs)
    traced = einsql.trace(module, *inputs)
    found = traced(*inputs)
    many = isinstance(expected, tuple | list)
    for f, e in zip(*((found, expected) if many else ([found], [expected])), strict=True):
        assert f.shape == tuple(e.shape)
        assert f.dtype == e.numpy().dtype
        np.testing.assert_allclose(f, e.numpy(), rtol=near, atol=near)
    return traced


class Of(nn.Module):  # type: ignore[misc, name-defined]  # torch is an Any here
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: Tensor) -> Any:
        return self.fn(*inputs)


class Sorting(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """What has no meaning."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort().values


class Block(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """A transformer's layer with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, e = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, e))
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Language(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(20, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


class Pictures(nn.Sequential):  # type: ignore[misc, name-defined]  # as above
    """A convolutional network."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4), nn.SiLU(),
            nn.Conv2d(8, 16, 3, padding=2, dilation=2), nn.GroupNorm(4, 16), nn.Tanh(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 10),
            nn.LogSoftmax(dim=1),
        )  # fmt: skip


def test_a_network_of_layers() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    traced = same(module, tensor(5, 8))
    assert list(traced.tensors)[:2] == ["input", "p_0_weight"]
    with torch.no_grad():  # parameters are shared, so what changes there shows here
        module[3].bias += 1
        expected = module(tensor(5, 8))
    np.testing.assert_allclose(traced(tensor(5, 8)), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_language_model() -> None:
    torch.manual_seed(0)
    traced = same(Language(), torch.randint(0, 50, (2, 16)))
    assert "blocks_0_qkv AS (" in traced.sql
    con = einsql.connect()
    traced.register(con)
    assert con.execute(traced.sql).fetch_numpy().shape == (2, 16, 50)


def test_a_convolutional_network() -> None:
    torch.manual_seed(0)
    traced = same(Pictures(), tensor(2, 3, 16, 16))
    plan = str(einsql.trace(Pictures().eval(), tensor(8, 3, 64, 64)).explain())
    assert "windows" in plan
    assert traced(tensor(2, 3, 16, 16, seed=1)).shape == (2, 10)


def test_pytorchs_own_attention_and_encoder() -> None:
    torch.manual_seed(0)
    same(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), tensor(2, 8, 32))
    x = tensor(2, 8, 32)
    same(nn.MultiheadAttention(32, 4, batch_first=True), x, x, x)


LAYERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rms norm": lambda: (nn.RMSNorm(8), tensor(3, 8)),
    "bilinear": lambda: (nn.Bilinear(3, 4, 5), tensor(2, 3), tensor(2, 4)),
    "conv1d": lambda: (nn.Conv1d(3, 4, 3, padding=2, dilation=3), tensor(2, 3, 5)),
    "conv without a batch": lambda: (nn.Conv2d(3, 4, 2), tensor(3, 5, 5)),
    "transposed convolution": lambda: (
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), groups=2), tensor(2, 4, 5, 6)),
    "wide transposed convolution": lambda: (
        nn.ConvTranspose1d(3, 4, 2, padding=2, dilation=2, bias=False), tensor(3, 7)),
    "as wide as before": lambda: (nn.Conv1d(3, 4, 5, padding="same"), tensor(2, 3, 9)),
    "instances": lambda: (nn.InstanceNorm1d(3, affine=True), tensor(2, 3, 9)),
    "pooling without borders": lambda: (
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), tensor(2, 3, 8, 7)),
    "average pooling": lambda: (nn.AvgPool2d(3, 2, padding=1), tensor(2, 3, 8, 8)),
    "maximum pooling": lambda: (nn.MaxPool2d(3, 2, padding=1), tensor(2, 3, 9, 9)),
    "activations": lambda: (
        nn.Sequential(nn.ELU(), nn.LeakyReLU(), nn.Softplus(), nn.Hardswish(), nn.Sigmoid(),
                      nn.GELU("tanh"), nn.ReLU6(), nn.Hardtanh(), nn.Mish()), tensor(4, 5)),
    "losses": lambda: (
        Of(lambda x, y, t: (functional.cross_entropy(x, t), functional.mse_loss(x, y))),
        tensor(6, 5), tensor(6, 5, seed=1), torch.randint(0, 5, (6,)),
    ),
}  # fmt: skip
ROWS = torch.tensor([[False], [True], [False], [True]])
OPERATIONS: dict[str, Callable[..., Any]] = {
    "integers meet floats": lambda x: x * torch.arange(4) + torch.arange(4) / 2 + x.shape[0],
    "integer division": lambda x: torch.arange(-4, 4) // 3 + torch.arange(8) % 3,
    "masks": lambda x: x.masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf")).softmax(-1),
    "masks that are added": lambda x: (x + torch.full((4, 4), -torch.inf).triu(1)).softmax(-1),
    "where": lambda x: torch.where(x > 0, x, 0.0) + (x > 0) * 2,
    "joined": lambda x: torch.cat([x, x[:, :2]], 1).chunk(2, 1)[1] + torch.stack([x, x])[0, :, :3],
    "extremes": lambda x: x.max(1).values + x.min(1).indices + x.amax(1) + x.argmax(),
    "statistics": lambda x: x.var(1) + x.std(1, correction=0) + x.mean() + x.norm(dim=1),
    "sums": lambda x: x.sum(1).cumsum(0) + x.logsumexp(1) + x.prod(1) + (x > 0).sum(1),
    "indexed": lambda x: x[[0, 2, -1]][:, torch.tensor([1, 1, 3])] + x[1:, None, 0],
    "gathered": lambda x: x.gather(1, torch.tensor([[0], [3], [1], [2]])).squeeze(1),
    "expanded": lambda x: x[:1].expand(4, -1) + x.t().unsqueeze(0).repeat(2, 1, 1).flatten(1)[0, 0],
    "products": lambda x: x @ x[0] + torch.einsum("ij,kj->ik", x, x).diagonal() + x[0].dot(x[1]),
    "padded": lambda x: functional.pad(x, (1, 2, 0, 1), value=2.0)[:, 1:] * 1.5,
    "turned": lambda x: x.roll(1, 0) + x.flip(0) + x.tril() + x.clamp(-0.5, 0.5) + x.movedim(0, 1),
    "rounded": lambda x: (x.half().float() * 3, x.to(torch.bfloat16).float() + 0),
    "half": lambda x: (x.half() @ x.half().T).float() + x.to(torch.float64),
    "one axis of many": lambda x: x.unflatten(1, (2, 2)).sum((0, -1)) + x.view(8, 2).unbind()[0],
    "in place": lambda x: (x * 2).add_(1).relu_(),
    "rows of -inf": lambda x: torch.logsumexp(x.masked_fill(ROWS, -torch.inf), 1),
    "infinite rows": lambda x: (x / 0).logsumexp((0, 1)) + (x / 0).abs().logsumexp(1),
    "safe rows": lambda x: functional.scaled_dot_product_attention(x, x, x, ~ROWS.expand(4, 4)),
    "added safe rows": lambda x: functional.scaled_dot_product_attention(
        x, x, x, torch.zeros(4, 4).masked_fill(ROWS, -torch.inf)),
    "finite": lambda x: x.rsqrt().nan_to_num() + (x / 0).nan_to_num(1, 2, 3),
    "signs of NaN": lambda x: (x.sqrt().sign() + x.sgn()).round() + (x * 3).round(decimals=1),
    "between": lambda x: torch.lerp(x, x + 1, 0.3) + torch.fmin(x, x.t()),
    "mirrored": lambda x: functional.pad(x[None], (1, 2), mode="reflect")
    + functional.pad(x[None], (2, 1), mode="circular")
    + functional.pad(x[None], (0, 3), mode="replicate"),
    "larger": lambda x: functional.interpolate(x[None], size=10)[..., :8]
    + functional.interpolate(x[None], scale_factor=2),
    "several": lambda x: (x + 1, x.split(2, 1)[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", spread(LAYERS, 6))
def test_layers(name: str) -> None:
    torch.manual_seed(0)
    module, *inputs = LAYERS[name]()
    same(module, *inputs)


@pytest.mark.parametrize("name", spread(OPERATIONS, 12))
def test_operations(name: str) -> None:
    same(Of(OPERATIONS[name]), tensor(4, 4), near=1e-3 if name == "half" else 2e-5)


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        (torch.nn.Linear(5, 2), "shapes and types"),
        (torch.nn.Embedding(4, 2), "shapes and types"),
        (Of(lambda x: x if x.sum() > 0 else -x), "Decisions by values"),
    ],
)
def test_refusals_of_pytorchs_say_what_to_look_at(module: Any, hint: str) -> None:
    with pytest.raises(einsql.NotSupportedError, match=r"torch\.export cannot trace") as caught:
        einsql.trace(module, tensor(3, 4))
    assert hint in caught.value.hint


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(einsql.NotSupportedError, match=r"torch\.export cannot trace"):
        einsql.trace(Of(lambda x: x if x.sum() > 0 else -x), tensor(4))
    with pytest.raises(einsql.NotSupportedError, match="sort") as info:
        einsql.trace(nn.Sequential(nn.ReLU(), nn.Sequential(Sorting())), tensor(4))
    assert "in the layer 1.0, a Sorting" in info.value.reason
    assert "of test_modules.py, in forward: return x.sort().values" in info.value.reason
    assert "ranks" in str(info.value.hint)


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "running statistics": (lambda: nn.BatchNorm1d(4).train(), "running_mean", "module.eval"),
    "the batch's statistics": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), "own mean", "track_running"),
    "indices of one axis": (
        lambda: nn.MaxPool1d(2, return_indices=True), "result 1 of aten.max_pool", "first result"),
    "indices of two axes": (
        lambda: nn.MaxPool2d(2, return_indices=True), "result 1 of aten.max_pool", "first result"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_is_missing_and_a_way_out(name: str) -> None:
    made, reason, hint = REFUSED[name]
    x = tensor(2, 4, 4, 4) if "two" in name else tensor(2, 4, 4)
    with pytest.raises(einsql.NotSupportedError, match=reason) as info:
        einsql.trace(made(), x)
    assert hint in str(info.value.hint)


def _column(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 7.0
    return y


def _masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = -1.0
    y[1:, ::2] += x[:-1, ::2]
    y[2] = y[0]
    return y


def _over(x: Tensor) -> Tensor:
    y = x * 2
    y.copy_(x)
    return y


def _in_place(x: Tensor) -> Tensor:
    y = x * 2
    return functional.relu(y, inplace=True) + y


@pytest.mark.parametrize("fn", [_column, _masked, _over, _in_place])
def test_what_is_written_in_place_is_seen_by_all(fn: Callable[..., Any]) -> None:
    same(Of(fn), tensor(4, 5))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: functional.dropout(x, 0.5, True),
        lambda x: x.norm(3, 1),
        lambda x: functional.max_pool2d(x[None], 3, 2, ceil_mode=True),
        lambda x: functional.cross_entropy(x, x.argmax(1), label_smoothing=0.1),
        lambda x: functional.cross_entropy(x, x.argmax(1), ignore_index=2),
        lambda x: functional.relu(x, inplace=True) + 1,
    ],
)
def test_options_without_a_meaning_are_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(einsql.NotSupportedError):
        einsql.trace(Of(fn), tensor(4, 5))


@pytest.mark.parametrize("shared", [True, False])
def test_a_program_reads_the_present_tensors_of_its_module(shared: bool) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    program = einsql.trace(layer, x, connection=einsql.connect() if shared else None)
    state = {name: tensor + 1 for name, tensor in layer.state_dict().items()}

    def same() -> bool:
        return np.allclose(program(x), layer(x).detach(), atol=1e-5)

    layer[0].weight.data = torch.full((2, 3), 5.0)
    assert same()
    with torch.no_grad():
        layer[0].weight.mul_(2)
    assert same()
    layer.load_state_dict(state, assign=True)
    assert same()
    layer.double()
    with pytest.raises(einsql.InterfaceError, match="was float32 of"):
        program(x)
