"""Between torch and the simulated kernels whose roundings are all pushed to their ends.

What laws call with tensors is simulated in NumPy, every inexact rounding moved by a full half ulp
and every function by all that a stranger is granted, in one pattern of signs, and rounded once to
nearest at the end.
"""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (registers bfloat16)
import numpy as np
import torch
from simulated_attention import stressed

from tightrope.device import to_numpy
from tightrope.formats import stored, widen

PATTERNS = ("up", "down", "outward", "inward", "random")
SEED = 20261201


def rounding(pattern):
    """A new one for every call, so that a call repeats itself."""
    return stressed(pattern, SEED)


def arrays(*tensors):
    """Stored values; None stays None."""
    return [None if x is None else to_numpy(x) for x in tensors]


def wide(*tensors):
    return [None if x is None else widen(x) for x in arrays(*tensors)]


def tensor(x, dtype, shape=None):
    """Values, rounded once to a torch dtype of their own; never through a second one."""
    name = str(dtype).removeprefix("torch.")
    kept = stored(x if shape is None else x.reshape(shape), name)
    if name == "bfloat16":
        return torch.from_numpy(kept.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(kept))


def dtype_of(x, out_dtype):
    return x.dtype if out_dtype is None else out_dtype
