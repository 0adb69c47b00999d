"""Hints: the code to write in place of a function that cannot be traced."""

from __future__ import annotations

_SHAPE = (
    "Its shape would depend on data; keep all elements, and np.where(condition, x, 0) for some."
)
_ORDER = (
    "The order of elements is not known before the program runs; sort before or after, or take "
    "x.max(), np.argmax(x) and counts such as (x[:, None] > x).sum(1), which are ranks."
)
_SOLVER = "There is no solver in SQL; call it outside, and pass its result in as an argument."
_RANDOM = "A traced program gives the same each time; draw outside, and pass the result in."
_RANKS = "There are no quantiles here; call it outside, and pass its result in as an argument."
_WRITES = "Write y = np.where(condition, value, x), or assign to a slice: y[i, :] = value."
_PLAIN = "Leave it out: the array is traced, and becomes NumPy's when the program is called."
_SCAN = "Only sums run along an axis here: np.cumsum, also of logarithms."

_HINTS: dict[str, str] = {
    **dict.fromkeys(("sort", "argsort", "lexsort", "partition", "argpartition", "searchsorted",
                     "topk", "kthvalue", "msort"), _ORDER),
    **dict.fromkeys(("unique", "nonzero", "flatnonzero", "argwhere", "compress", "extract",
                     "bincount", "histogram", "setdiff1d", "intersect1d", "union1d", "isin",
                     "delete", "trim_zeros", "masked_select", "unique2", "_unique2"), _SHAPE),
    **dict.fromkeys(("inv", "solve", "svd", "eig", "eigh", "det", "slogdet", "qr", "cholesky",
                     "lstsq", "pinv", "matrix_rank", "eigvals", "eigvalsh",
                     "linalg_inv_ex", "linalg_solve_ex", "linalg_eigh", "linalg_svd"), _SOLVER),
    "matrix_power": "Write the products, y = y @ x in a loop.",
    **dict.fromkeys(("rand", "randn", "bernoulli", "multinomial", "randint", "normal"), _RANDOM),
    **dict.fromkeys(("median", "nanmedian", "quantile", "percentile", "nanquantile",
                     "nanpercentile", "mode"), _RANKS),
    **dict.fromkeys(("put", "place", "putmask", "copyto", "fill", "fill_diagonal", "add.at",
                     "put_along_axis", "scatter", "scatter_add", "scatter_reduce", "index_put",
                     "index_add", "index_copy", "masked_scatter"), _WRITES),
    **dict.fromkeys(("view", "flat", "data", "base", "tobytes", "tofile", "dump"), _PLAIN),
    **dict.fromkeys(("cumprod", "cummax", "cummin", "multiply.accumulate", "maximum.accumulate",
                     "minimum.accumulate", "logcumsumexp"), _SCAN),
}  # fmt: skip


def way_out(name: str) -> str:
    """The hint for a function of NumPy or PyTorch that cannot be traced.

    Args:
        name: Its name without a module's.
    """
    return _HINTS.get(
        name,
        'The page "NumPy functions and PyTorch modules as SQL" lists what can be traced. Spell it '
        "with these functions, or call it outside and pass its result in as an argument.",
    )
