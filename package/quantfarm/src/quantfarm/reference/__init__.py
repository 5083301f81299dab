"""The oracle: float64 decode straight from the stored bytes, the float64 product, error figures and the verdict.

Plain and slow on purpose; it shares no code with readers, packers or kernels.
"""

from quantfarm.reference.decoding import decode
from quantfarm.reference.measures import (
    ErrorFigures,
    column_verdict,
    dense_error,
    errors,
    linear,
    ulps,
    verdict,
)
from quantfarm.reference.stored import Stored

__all__ = ["ErrorFigures", "Stored", "column_verdict", "decode", "dense_error", "errors", "linear", "ulps", "verdict"]
