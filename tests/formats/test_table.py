"""The table of formats names readers and writers that exist, and can be asked without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import UnknownFormat
from quantfarm.formats.table import FORMATS, FormatRow, find


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.format.value)
def test_every_row_leads_to_its_functions(row: FormatRow) -> None:
    """A row's reader, and its writer if it has one, are imported by name, and the row is found by each of its pairs."""
    assert callable(row.read())
    assert not row.writer or callable(row.write())
    assert all(find(method, row.format, row.dialect) is row for method in row.methods)
    assert set(row.tensors).isdisjoint(row.optional)


def test_a_pair_without_a_row_lists_the_readable_ones() -> None:
    """A known format under the wrong method is no pair."""
    with pytest.raises(UnknownFormat, match="cannot read method gptq with format gemm") as caught:
        find(METHOD.GPTQ, FORMAT.GEMM)
    assert "this version reads awq: gemm" in str(caught.value)


def test_settings_are_read_without_torch() -> None:
    """The table and the settings parser load neither torch nor numpy."""
    code = "import sys, quantfarm.formats.config; assert not {'torch', 'numpy'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
