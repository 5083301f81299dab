"""The container of .gguf files: what is read, and that everything else is named and refused."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_files import SMALL, Entry, encoded, padded, text, three, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantfarm.declare.ggml import TYPES, GgmlType
from quantfarm.errors import CheckpointError
from quantfarm.formats.gguf_file import GgufFile, open_gguf

GOOD = encoded(SMALL, three())
BYTES = {entry.name: entry.data for entry in three()}


def opened(folder: Path, content: bytes) -> GgufFile:
    """Write and open."""
    return open_gguf(write(folder / "model.gguf", content))


def refused(folder: Path, content: bytes) -> str:
    """Write, open, and return the message of the refusal."""
    with pytest.raises(CheckpointError) as error:
        opened(folder, content)
    return str(error.value)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_both_versions_and_byte_orders_read(tmp_path: Path, version: int, order: str) -> None:
    """Metadata and table are the same in each; only little-endian data is given out."""
    file = opened(tmp_path, encoded(SMALL, three(), version=version, order=order))
    assert (file.version, file.big_endian, file.architecture) == (version, order == ">", "llama")
    assert file.metadata == {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "some.numbers": (1, -2, 3),
        "some.words": ("a", "", "longer"),
        "some.nested": ((1, 2), (3,)),
        "some.fraction": 0.5,
        "some.truth": True,
    }
    assert {n: (t.shape, t.type_name) for n, t in file.tensors.items()} == {
        "plain": ((2, 4), "f32"),
        "eight": ((3, 32), "q8_0"),
        "four": ((16, 64), "q4_0"),
    }
    if file.big_endian:
        with pytest.raises(CheckpointError, match="big-endian"):
            file.raw("four")
    else:
        assert {name: bytes(file.raw(name)) for name in file.tensors} == BYTES


def test_the_gguf_package_writes_what_is_read(tmp_path: Path) -> None:
    """A file of the reference writer has the same metadata, shapes and bytes here."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_block_count(2)
    writer.add_array("tokens", ["x", "yy"])
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("plain", values)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = open_gguf(tmp_path / "model.gguf")
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokens"] == ("x", "yy")
    assert bytes(file.raw("plain")) == values.tobytes()
    assert file.tensors["packed"].shape == (3, 32)
    assert bytes(file.raw("packed")) == packed.tobytes()


def test_r88_every_cut_is_refused(tmp_path: Path) -> None:
    """Each prefix of a good file is refused as cut, with the bytes it needs and the bytes there are."""
    path = tmp_path / "model.gguf"
    for length in range(len(GOOD)):
        message = refused(tmp_path, GOOD[:length])
        assert str(path) in message
        cause = "empty" if not length else "not a GGUF file" if length < 0 else "truncated"
        assert cause in message, (length, message)
        assert f"{length} bytes" in message or f"got {length}" in message, message
    assert opened(tmp_path, GOOD).tensors.keys() == BYTES.keys()


def test_r88_a_cut_in_the_data_says_which_tensors(tmp_path: Path) -> None:
    """A file that ends after its first tensor names the first one that is not whole, and both sizes."""
    file = opened(tmp_path, GOOD)
    cut = file.tensors["eight"].offset
    message = refused(tmp_path, GOOD[:cut])
    assert f"size: needs {len(GOOD)} bytes, got {cut}" in message
    assert "2 of 3 tensors are cut or missing, the first is eight" in message


@pytest.mark.parametrize("content", [b"just a text file\n", bytes(range(64)), b"PK\x03\x04" + bytes(60)])
def test_r88_other_files_are_not_gguf(tmp_path: Path, content: bytes) -> None:
    """A text file or random bytes are told as such, with the first bytes."""
    assert "not a GGUF file" in refused(tmp_path, content)


def test_r88_a_missing_part_is_named(tmp_path: Path) -> None:
    """A split model needs all of its parts under their names; with them it reads as one file."""
    common = {"split.count": ("u16", 3), "split.tensors.count": ("i32", 3)}
    parts = [
        encoded((SMALL if i == 0 else {}) | common | {"split.no": ("u16", i)}, [entry])
        for i, entry in enumerate(three())
    ]
    paths = [write(tmp_path / f"m-{i:05d}-of-00003.gguf", part) for i, part in enumerate(parts, 1)]
    file = open_gguf(paths[1])
    assert {name: bytes(file.raw(name)) for name in file.tensors} == BYTES
    assert file.metadata["llama.context_length"] == 64
    assert file.total_size == sum(map(len, parts))
    paths[1].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match="missing part 2 of 3: m-00002-of-00003"):
        open_gguf(paths[0])
    with pytest.raises(CheckpointError, match="under another name"):
        open_gguf(tmp_path / "other.gguf")
    write(paths[1], parts[0])
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf: split.no needs 1 of 3, got 0"):
        open_gguf(paths[0])


@pytest.mark.parametrize("number", [42, 255])
def test_r89_an_unknown_type_spoils_one_tensor_only(tmp_path: Path, number: int) -> None:
    """Metadata and the other tensors read; the one of a newer type names its id, its size and what is known."""
    first, second, third = three()
    new = Entry(name="new", shape=(3, 32), number=number, data=second.data)
    file = opened(tmp_path, encoded(SMALL, [first, new, third]))
    assert file.metadata["llama.context_length"] == 64
    assert bytes(file.raw("plain")) == first.data
    assert bytes(file.raw("four")) == third.data
    assert file.tensors["new"].type is None
    with pytest.raises(CheckpointError, match=rf"new: (unknown )?type {number}.* 128 bytes up to the next tensor"):
        file.raw("new")


@pytest.mark.parametrize(("block", "size"), [(64, 18), (128, 34)])
def test_r89_the_bytes_decide_between_types_of_one_id(tmp_path: Path, block: int, size: int) -> None:
    """Id 42 is Q2_0 with blocks of 64 or of 128: the room up to the next tensor says which."""
    data = bytes(8 * 256 // block * size)
    tensors = [Entry(name="w", shape=(8, 256), number=42, data=data), three()[0]]
    for order in (tensors, tensors[::-1]):
        kind = opened(tmp_path, encoded(SMALL, order)).tensors["w"].type
        assert kind is not None
        assert (kind.name, kind.block) == ("q2_0", block)


@pytest.mark.parametrize("kind", [t for t in TYPES if t.block > 1], ids=str)
def test_r86_rows_that_do_not_fit_the_block_are_refused(tmp_path: Path, kind: GgmlType) -> None:
    """Rows of every length read where the block divides them, else the first side is named; 31 fits no block."""
    for k in (4544, 2688, 256, 32, 31):
        entry = Entry(name="w", shape=(16, k), number=kind.number, data=bytes(16 * kind.bytes_of(k)))
        content = encoded(SMALL, [entry, three()[0]])
        if k % kind.block == 0:
            assert opened(tmp_path, content).tensors["w"].type == kind
        elif len([t for t in TYPES if t.number == kind.number]) == 1:
            needed = f"w: the first side (K) of {kind.name} needs a multiple of {kind.block}, got {k}"
            assert needed in refused(tmp_path, content)
        else:
            with pytest.raises(CheckpointError, match="neither fits"):
                opened(tmp_path, content).raw("w")


def test_r86_a_mix_of_types_reads(tmp_path: Path) -> None:
    """A file whose tensors fell back to other types gives each tensor its own."""
    kinds = [kind for kind in TYPES if 256 % kind.block == 0]
    entries = [
        Entry(name=f"w{i}", shape=(32, 256), number=kind.number, data=bytes([i]) * 32 * kind.bytes_of(256))
        for i, kind in enumerate(kinds)
    ]
    file = opened(tmp_path, encoded(SMALL, entries))
    assert [tensor.type for tensor in file.tensors.values()] == kinds
    assert all(bytes(file.raw(entry.name)) == entry.data for entry in entries)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"offset": 16}, "offset needs a multiple of 32"),
        ({"offset": 0}, "reach into"),
        ({"offset": 1 << 62}, "truncated"),
        ({"name": "plain"}, "for the second time"),
        ({"shape": (2, 2, 2, 2, 64)}, "at most 4, got 5"),
        ({"shape": (0, 64)}, "sides: needs positive"),
        ({"shape": (1 << 39, 64)}, "truncated"),
    ],
)
def test_impossible_tables_are_refused(tmp_path: Path, change: dict[str, object], cause: str) -> None:
    """Overlaps, bad offsets, doubled names and impossible sides are named before any byte is given out."""
    last = {"name": "four", "shape": (16, 64), "number": 2, "data": BYTES["four"], **change}
    assert cause in refused(tmp_path, encoded(SMALL, [*three()[:2], Entry(**last)]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        (struct.pack("<IQQ", 1, 0, 0), "version: needs 2 or 3, got 1"),
        (struct.pack("<IQQ", 3, 1 << 60, 0), "number of tensors"),
        (struct.pack("<IQQ", 3, 0, 1 << 60), "number of metadata entries"),
        (struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + bytes(64), "length of the key"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99) + bytes(64), "value type: needs 0 to 12"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 62) + bytes(64), "length of k"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2) + bytes(64), ""),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9,
            "no deeper than 4",
        ),
        (struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xff" + bytes(64), "needs UTF-8, got ff ff"),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + struct.pack("<II", 4, 7) + bytes(64),
            "general.alignment: needs a positive multiple of 8, got 7",
        ),
    ],
)
def test_impossible_headers_are_refused(tmp_path: Path, head: bytes, cause: str) -> None:
    """Counts that the file can not hold are refused before memory is taken for them."""
    if cause:
        assert cause in refused(tmp_path, b"GGUF" + head)
    else:
        assert opened(tmp_path, b"GGUF" + head).metadata == {"k": ("", "")}


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    """A path that is no file says what is there."""
    with pytest.raises(CheckpointError, match="got a folder"):
        open_gguf(tmp_path)
    with pytest.raises(CheckpointError, match="got nothing"):
        open_gguf(tmp_path / "absent.gguf")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_never_crash(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    """Whatever bytes of a file are flipped, it opens or it is refused by an error of the project."""
    content = bytearray(GOOD)
    for at, mask in flips:
        content[at] ^= mask
    try:
        file = opened(tmp_path, bytes(content))
    except CheckpointError:
        return
    for name, tensor in file.tensors.items():
        if tensor.type is not None and not file.big_endian:
            assert len(file.raw(name)) == tensor.size


def test_the_last_alignment_may_be_missing(tmp_path: Path) -> None:
    """A file may end with its data or with full padding, since writers differ; anything between is a cut."""
    entry = three()[1]
    whole = encoded(SMALL, [entry])
    data_end = len(whole) - (len(padded(entry.data, 32)) - len(entry.data))
    assert opened(tmp_path, whole[:data_end]).tensors["eight"].size == len(entry.data)
    assert "truncated" in refused(tmp_path, whole[: data_end + 1])
    assert "truncated" in refused(tmp_path, whole[: data_end - 1])


def test_reading_a_header_needs_neither_torch_nor_numpy() -> None:
    """The container is read with the standard library alone."""
    script = "import sys, quantfarm.formats.gguf_file; print({'torch', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
