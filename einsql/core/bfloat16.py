"""BFLOAT16 in NumPy, which has no such type: stored as bits, computed as float32.

A BFLOAT16 is the upper half of a FLOAT. Arrays of relations store its bits with the dtype
`DType.BFLOAT16.numpy`; expressions compute with float32. Rounding is to nearest, ties to even.
Values beyond the largest number become infinite, and NaN stays NaN.
"""

from __future__ import annotations

import numpy as np

from einsql.core.schema import DType

_BITS = DType.BFLOAT16.numpy
_QUIET = np.uint32(0x0040_0000)
"""The bit that is set in a quiet NaN; without it the upper half could be infinity's."""
_KEPT = np.uint32(0xFFFF_0000)


def widen(bits: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The float32 numbers of BFLOAT16 bits, all of them exact.

    Args:
        bits: The bits, uint16.
        out: The array to write to, float32 of the same shape; None for new memory.
    """
    if out is None:
        few = bits[tuple(slice(0, 1) if s == 0 else slice(None) for s in bits.strides)]
        if few.size < bits.size:  # a broadcast default may have more keys than memory has bytes
            return np.broadcast_to(widen(few), bits.shape)
        out = np.empty_like(bits, np.float32, subok=False)
    np.left_shift(bits, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    return out


def narrow(values: np.ndarray) -> np.ndarray:
    """The BFLOAT16 bits nearest to numbers, in new memory.

    Args:
        values: The numbers, of any numeric dtype.
    """
    upper = rounded(values).view(np.uint32) >> np.uint32(16)
    return np.asarray(upper).astype(_BITS)


def rounded(values: np.ndarray) -> np.ndarray:
    """The BFLOAT16 nearest to each number, as float32; DOUBLE is rounded once.

    Args:
        values: The numbers, of any numeric dtype.
    """
    values = np.asarray(values)
    if values.dtype != np.float32 and values.dtype != np.float16:
        return _rounded_doubles(values.astype(np.float64, copy=False))
    values = values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    with np.errstate(over="ignore"):  # only a NaN's bits can exceed theirs
        up = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    if np.isnan(values).any():
        up = np.where(np.isnan(values), bits | _QUIET, up)
    return np.asarray(up & _KEPT).view(np.float32)


def _rounded_doubles(values: np.ndarray) -> np.ndarray:
    """The BFLOAT16 nearest to each float64, as float32.

    The last place of a BFLOAT16 is 2^-7 of its leading one, and 2^-133 at least.
    """
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(values)
        places = 8 - np.maximum(exponent, -125)
        scaled = np.rint(np.ldexp(values, places))  # at most 2^8, so this is exact
        return np.asarray(np.ldexp(scaled, -places)).astype(np.float32)


def loaded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A field's array in its computing dtype: float32 for BFLOAT16, else unchanged."""
    return widen(array) if dtype is DType.BFLOAT16 else array


def stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values from `loaded` or `cast_array`, in the dtype in which a field stores them."""
    return narrow(values) if dtype is DType.BFLOAT16 else values
