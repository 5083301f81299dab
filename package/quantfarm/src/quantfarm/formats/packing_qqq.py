"""The library of packing, QQQ's part: the two orders in which its tiles of 16 inputs by 64 outputs hold their codes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from quantfarm.formats.packing_tiles import AWQ_ORDER, TileOrder

_PER_CHANNEL_ORDER = (4, 0, 5, 1, 6, 2, 7, 3)


def _fragments(order: tuple[int, ...]) -> Iterable[int]:
    """Yield the places of a tile (formats, section 9): thread, warp, then codes in ``order`` word by word."""
    for thread in range(32):
        for warp in range(4):
            n0, k0 = 16 * warp + thread // 4, 4 * (thread % 4)
            held = [(k0 + step) * 64 + n for n in (n0, n0 + 8) for step in range(4)]
            yield from (held[i] for i in order)


QQQ_GROUPED = TileOrder(rows=16, columns=64, bits=4, word=torch.int32, places=tuple(_fragments(AWQ_ORDER)))
"""Codes [K, N] with scales of groups, int32 [K/16, N*2]; a field is a code from 0 to 15."""

QQQ_PER_CHANNEL = TileOrder(rows=16, columns=64, bits=4, word=torch.int32, places=tuple(_fragments(_PER_CHANNEL_ORDER)))
"""The same with scales of outputs only; a field is a two's complement number from -8 to 7."""
