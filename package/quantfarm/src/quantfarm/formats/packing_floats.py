"""The library of packing, narrow floats: every 8-bit float and E2M1 as tables, nibbles of a byte, the scale swizzle."""

from __future__ import annotations

import torch

FLOAT8: dict[str, torch.dtype] = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}
"""Name in the settings to the dtype of the stored weight; e8m0fnu is 2^(byte - 127), 255 is NaN."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude of the low three bits of an E2M1 code; bit 3 is the sign (formats, section 12)."""

_E2M1_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_SIGN = 8
_TILE_ROWS, _TILE_COLUMNS, _LANES = 128, 4, 32


def float8_table(code_type: str) -> torch.Tensor:
    """Return the value of every byte as fp32 [256]; bytes that are NaN give NaN."""
    return torch.arange(256, dtype=torch.uint8).view(FLOAT8[code_type]).to(torch.float32)


def e2m1_pairs() -> torch.Tensor:
    """Return the two values of every byte as int64 [256], each of which is two fp32 side by side.

    One gather of 8 bytes is four times as fast as two of 4.
    """
    values = torch.tensor([*E2M1, *(-value for value in E2M1)])
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1).view(torch.int64).reshape(256)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest E2M1 code, uint8 of the same shape; ties go to the even code, large values saturate.

    The thresholds are those of formats, section 12. A negative value that rounds to zero keeps its sign.
    """
    thresholds = torch.tensor(_E2M1_THRESHOLDS, device=values.device)
    size = values.abs().to(torch.float32)
    below, above = torch.bucketize(size, thresholds), torch.bucketize(size, thresholds, right=True)
    # The two differ exactly where a value lies on a threshold.
    code = torch.where(below % 2 == 0, below, above)
    return (code + _SIGN * torch.signbit(values)).to(torch.uint8)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [N, K] of 4-bit codes, K even, to [N, K/2]: element 2i in the low nibble of byte i."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [N, K/2] to codes [N, K]: the inverse of ``pack_nibbles``."""
    return torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)


def swizzle_scales(scales: torch.Tensor) -> torch.Tensor:
    """Lay one-byte block scales [rows, K/16] out as matrix units read them (formats, section 12).

    Padded with zero bytes to multiples of 128 x 4; tiles of 128 x 4 row by row of tiles, 512 bytes each; in a tile,
    (r, c) is at byte (r % 32) * 16 + (r // 32) * 4 + c.

    Returns:
        A flat tensor of the same dtype.
    """
    rows, columns = scales.shape
    padding = (0, -columns % _TILE_COLUMNS, 0, -rows % _TILE_ROWS)
    padded = torch.nn.functional.pad(scales.view(torch.uint8), padding)
    tiles = padded.view(-1, _TILE_ROWS // _LANES, _LANES, padded.shape[1] // _TILE_COLUMNS, _TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)


def unswizzle_scales(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the scales [rows, columns] of a swizzled layout: the inverse of ``swizzle_scales``."""
    tiles_across = -(-columns // _TILE_COLUMNS)
    tiles = swizzled.view(torch.uint8).view(-1, tiles_across, _LANES, _TILE_ROWS // _LANES, _TILE_COLUMNS)
    padded = tiles.permute(0, 3, 2, 1, 4).reshape(-1, tiles_across * _TILE_COLUMNS)
    return padded[:rows, :columns].contiguous().view(swizzled.dtype)
