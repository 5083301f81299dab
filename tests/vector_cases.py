"""VPTQ for tests: random stored tensors of any kind, and W by the letter of formats, section 14, index by index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.packing_codebooks import pack_entries
from quantfarm.formats.vptq import read
from quantfarm.formats.weights.vectors import VectorWeight


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to draw. Sizes of codebooks are exponents of two; -1 is no residual, no outliers are ``outlier_size`` 0."""

    n: int = 20
    vector: int = 4
    main: int = 4
    residual: int = -1
    groups: int = 1
    group_size: int = 24
    outlier_size: int = 0
    outlier_vector: int = 2
    outlier: int = 3
    norm: bool = False
    perm: bool = False
    packed: bool = True
    as_float: bool = False
    dtype: torch.dtype = torch.float16
    seed: int = 0

    @property
    def k(self) -> int:
        """Inputs."""
        return self.outlier_size + self.groups * self.group_size

    def own(self) -> dict[str, Any]:
        """Return the settings of the layer."""
        outliers = self.outlier_size > 0
        return {
            "in_features": self.k,
            "out_features": self.n,
            "vector_lens": [self.outlier_vector if outliers else -1, self.vector],
            "num_centroids": [1 << self.outlier if outliers else -1, 1 << self.main],
            "num_res_centroids": [-1, 1 << self.residual if self.residual >= 0 else -1],
            "group_num": self.groups,
            "group_size": self.group_size,
            "outlier_size": self.outlier_size,
            "indices_as_float": self.as_float,
            "enable_norm": self.norm,
            "enable_perm": self.perm,
            "is_indice_packed": self.packed,
            "bias": False,
            "vector_quant_dim": "out",
        }

    def config(self, **changes: Any) -> QuantConfig:
        """Return parsed settings of a checkpoint whose only layer is ``m``."""
        return parse({"quant_method": "vptq", "config_for_layers": {"m": self.own() | changes}}, source="settings")

    def stored(self) -> dict[str, torch.Tensor]:
        """Draw the tensors."""
        source = torch.Generator().manual_seed(self.seed)
        high = -(-self.n // self.vector)
        main = torch.randint(0, 1 << self.main, (self.groups, high, self.group_size), generator=source)
        tensors = {"centroids.weight": self._book(source, self.groups, self.main, self.vector)}
        rest = torch.zeros_like(main)
        if self.residual >= 0:
            rest = torch.randint(0, 1 << self.residual, main.shape, generator=source)
            tensors["res_centroids.weight"] = self._book(source, self.groups, self.residual, self.vector) * 0.1
        if self.packed:
            tensors["indices"] = pack_entries(rest << self.main | main, self.main + max(self.residual, 0))
        else:
            tensors["indices"] = self._short(main)
            tensors |= {"res_indices": self._short(rest)} if self.residual >= 0 else {}
        if self.outlier_size:
            shape = (1, -(-self.n // self.outlier_vector), self.outlier_size)
            tensors["outlier_indices"] = self._short(torch.randint(0, 1 << self.outlier, shape, generator=source))
            tensors["outlier_centroids.weight"] = self._book(source, 1, self.outlier, self.outlier_vector) * 8
        if self.perm:
            order = torch.randperm(self.k, generator=source)
            tensors["perm"] = order.to(torch.int16) if self.packed else order
        if self.norm:
            tensors["weight_scale"] = (torch.rand(self.k, generator=source) + 0.5).to(self.dtype)
            tensors["weight_bias"] = torch.randn(self.k, generator=source).to(self.dtype) * 0.1
        return tensors

    def weight(self) -> VectorWeight:
        """Read the drawn tensors."""
        return read(self.stored(), self.config(), module="m", k=self.k, n=self.n)

    def _book(self, source: torch.Generator, groups: int, exponent: int, size: int) -> torch.Tensor:
        return torch.randn(groups, size << exponent, generator=source).to(self.dtype)

    def _short(self, indices: torch.Tensor) -> torch.Tensor:
        return indices.to(torch.int16).view(torch.float16 if self.as_float else torch.int16)


def literal(tensors: dict[str, torch.Tensor], own: dict[str, Any]) -> torch.Tensor:
    """Return W [N, K] in float64."""
    n, (outlier_vector, vector) = own["out_features"], own["vector_lens"]
    high, residual = -(-n // vector), own["num_res_centroids"][1]
    raw = np.zeros((high * vector, own["group_num"] * own["group_size"]))
    for group, m, position in np.ndindex(own["group_num"], high, own["group_size"]):
        main, rest = _indices(tensors, own, (group, m, position))
        column, rows = group * own["group_size"] + position, slice(m * vector, (m + 1) * vector)
        raw[rows, column] = _entry(tensors["centroids.weight"], group, main, vector)
        if residual > 0:
            raw[rows, column] += _entry(tensors["res_centroids.weight"], group, rest, vector)
    raw = raw[:n]
    if own["outlier_size"]:
        left = np.zeros((-(-n // outlier_vector) * outlier_vector, own["outlier_size"]))
        for _, m, column in np.ndindex(*tensors["outlier_indices"].shape):
            index = _short(tensors["outlier_indices"])[0, m, column]
            entry = _entry(tensors["outlier_centroids.weight"], 0, index, outlier_vector)
            left[m * outlier_vector : (m + 1) * outlier_vector, column] = entry
        raw = np.concatenate([left[:n], raw], axis=1)
    if own["enable_perm"]:
        perm = tensors["perm"]
        places = [int(p) % 65536 for p in perm] if perm.dtype is torch.int16 else perm.tolist()
        raw = raw[:, [places.index(k) for k in range(len(places))]]
    if own["enable_norm"]:
        raw = raw * tensors["weight_scale"].double().numpy() + tensors["weight_bias"].double().numpy()
    return torch.from_numpy(raw.copy())


def _indices(tensors: dict[str, torch.Tensor], own: dict[str, Any], place: tuple[int, int, int]) -> tuple[int, int]:
    """Return main and residual index; of a packed stream the low bits are the main one."""
    group, m, position = place
    main, rest = (max(count, 1).bit_length() - 1 for count in (own["num_centroids"][1], own["num_res_centroids"][1]))
    if not own["is_indice_packed"]:
        shorts = [_short(tensors[name])[place] for name in ("indices", "res_indices") if name in tensors]
        return shorts[0], shorts[-1]
    stream = sum((int(word) % 2**32) << 32 * i for i, word in enumerate(tensors["indices"][group, m]))
    entry = stream >> (main + rest) * position
    return entry % 2**main, (entry >> main) % 2**rest


def _short(stored: torch.Tensor) -> Any:
    return stored.view(torch.int16).numpy().astype(int) % 65536


def _entry(book: torch.Tensor, group: int, index: int, size: int) -> np.ndarray:
    entry: np.ndarray = book[group, index * size : (index + 1) * size].double().numpy()
    return entry
