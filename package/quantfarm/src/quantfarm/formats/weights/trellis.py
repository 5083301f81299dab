"""TrellisWeight: weights as states of a trellis, between two Hadamard transforms (formats, section 13)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from quantfarm.formats.packing_codebooks import TILE, unpack_states
from quantfarm.formats.settings.exl3 import MULTIPLIERS, Codebook
from quantfarm.formats.weights.base import Weight

BLOCK = 128
"""Inputs, and outputs, that one Hadamard transform mixes."""

_STATES = 1 << 16
_WORD = (1 << 32) - 1
_ADDED = 64248484
_KEPT, _FLIPPED = 0x8FFF8FFF, 0x3B603B60
_BYTE_SUM, _FACTOR, _OFFSET = 0x6400, 0x1EEE, 0xC931


@dataclass(frozen=True, kw_only=True)
class TrellisWeight(Weight):
    """One weight ``W^T = diag(input_scales) H_K inner H_N diag(output_scales)``. See ``Weight`` for the rest.

    Attributes:
        trellis: int16 [K/16, N/16, 16*bits], the stored symbols.
        input_scales: fp16 [K], signs and scales of the inputs; from single bits where the file packs signs.
        output_scales: fp16 [N], those of the outputs.
        codebook: how a state becomes a number.
    """

    trellis: torch.Tensor
    input_scales: torch.Tensor
    output_scales: torch.Tensor
    codebook: Codebook

    @property
    def row_block(self) -> int:
        """Outputs that one Hadamard transform mixes, so that they are decoded together."""
        return BLOCK

    def inner(self, inputs: slice, outputs: slice) -> torch.Tensor:
        """Return the part of the inner weight in tile units: rows and columns ``16 * slice``, as fp32 [k, n].

        Every value is one of fp16, exactly. Columns are lane-major: all first columns of the tiles, then all second
        ones; ``natural`` undoes it.
        """
        states = unpack_states(self.trellis[inputs, outputs])
        values = codebook_table(self.codebook, states.device).index_select(0, states.flatten())
        return values.view(states.shape[0] * TILE, -1)

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K], both transforms and all scales applied.

        Sums of a transform are fp32; the two factors of 1/sqrt(128) are applied as one exact 1/128.
        """
        stop = self.n if stop is None else stop
        if start % BLOCK or (stop % BLOCK and stop != self.n):
            raise ValueError(f"rows are decoded in blocks: needs multiples of {BLOCK}, got {start} and {stop}")
        outputs = slice(start // TILE, stop // TILE)
        out = torch.empty(self.k, stop - start, dtype=torch.float32, device=self.device)
        matrix = hadamard(self.device)
        for k in range(0, self.k, BLOCK):
            rows = matrix @ natural(self.inner(slice(k // TILE, (k + BLOCK) // TILE), outputs))
            rows *= self.input_scales[k : k + BLOCK].to(torch.float32).unsqueeze(1)
            out[k : k + BLOCK] = transformed(rows)
        out *= self.output_scales[start:stop].to(torch.float32) / BLOCK
        return out.t()


def natural(values: torch.Tensor) -> torch.Tensor:
    """Return [m, n] with lane-major columns in their true order."""
    return values.view(values.shape[0], TILE, -1).transpose(1, 2).reshape(values.shape)


def transformed(values: torch.Tensor) -> torch.Tensor:
    """Return fp32 [m, n] after the unscaled Hadamard transform of each block of 128 columns."""
    return (values.view(-1, BLOCK) @ hadamard(values.device)).view(values.shape)


@functools.cache
def hadamard(device: torch.device) -> torch.Tensor:
    """Return the Sylvester Hadamard matrix of 128, fp32 [128, 128] of +1 and -1; it is its own transpose."""
    matrix = torch.ones(1, 1, device=device)
    while matrix.shape[0] < BLOCK:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@functools.cache
def codebook_table(codebook: Codebook, device: torch.device) -> torch.Tensor:
    """Return the value of each of the 65536 states as fp32 [65536]; each is a number of fp16.

    ``3inst`` and ``mcg`` add two halves of a hashed word, one rounding to fp16. ``mul1`` multiplies and adds halves
    with one rounding at the end, as the fused instruction does that the writers of such files use. Both are computed
    in float64, where sums and products of halves are exact.
    """
    product = torch.arange(_STATES, dtype=torch.int64) * MULTIPLIERS[codebook]
    if codebook is Codebook.MUL1:
        hashed = product & _WORD
        total = (hashed & 0xFF) + (hashed >> 8 & 0xFF) + (hashed >> 16 & 0xFF) + (hashed >> 24)
        value = _halves(_BYTE_SUM + total) * _halves(torch.tensor(_FACTOR)) + _halves(torch.tensor(_OFFSET))
    else:
        added = _ADDED if codebook is Codebook.THREE_INST else 0
        hashed = ((product + added) & _WORD & _KEPT) ^ _FLIPPED
        value = _halves(hashed & 0xFFFF) + _halves(hashed >> 16)
    return value.to(torch.float16).to(device=device, dtype=torch.float32)


def _halves(patterns: torch.Tensor) -> torch.Tensor:
    """Return the fp16 numbers of 16-bit patterns (int64, 0 to 65535) as float64."""
    return patterns.to(torch.uint16).view(torch.float16).to(torch.float64)
