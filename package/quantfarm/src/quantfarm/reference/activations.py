"""What a kernel does to its inputs before the product, so that it is judged against the same quantized inputs."""

from __future__ import annotations

import numpy as np

from quantfarm.reference.stored import Floats, Integers, Tensor, as_numpy


def int8_rows(x: Tensor) -> tuple[Integers, Floats]:
    """Quantize every row of x [..., K] to int8 (formats, section 9).

    The scale is amax|x|/127 in fp32, the quotient is float64 and half is rounded to even. A row of zeros has the
    scale 1 and the codes 0.

    Returns:
        The codes [..., K] and the scales [..., 1], each of which is an fp32 number.
    """
    wide = as_numpy(x).astype(np.float64)
    largest = np.abs(wide).max(axis=-1, keepdims=True, initial=0.0).astype(np.float32)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(127)).astype(np.float64)
    codes = np.clip(np.rint(wide / scales), -128, 127)
    return codes.astype(np.int64), scales


def int8_product(codes: Tensor, scales: Tensor, weight_codes: Tensor, weight_scales: Tensor) -> tuple[Integers, Floats]:
    """Multiply int8 codes [..., K] by int8 codes [N, K].

    Returns:
        The integer sums [..., N], which a kernel must have bit for bit, and these times the scales of row [..., 1]
        and channel [N] in float64.
    """
    left, right = as_numpy(codes).astype(np.int64), as_numpy(weight_codes).astype(np.int64)
    sums: Integers = left @ right.T
    both: Floats = as_numpy(scales).astype(np.float64) * as_numpy(weight_scales).astype(np.float64)
    return sums, sums * both
