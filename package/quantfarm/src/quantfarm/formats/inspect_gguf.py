"""What is in a .gguf file, from its header alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.formats.gguf_file import GgufFile, matrices, open_gguf, unknown_type
from quantfarm.formats.inspection import Inspection, Layer, odd_layers
from quantfarm.formats.settings.gguf import scheme_of


def inspect_gguf(path: Path) -> Inspection:
    """Look into a file, or all parts of a split one.

    Raises:
        CheckpointError: it is no whole .gguf file.
    """
    file = open_gguf(path)
    packed = matrices(file)
    layers = tuple(
        Layer(module=name, scheme=f"{t.type} {scheme_of(t.type)}", k=t.shape[1], n=t.shape[0], size=t.size)
        for name, t in packed.items()
        if t.type is not None
    )
    taken = {tensor.name for tensor in packed.values()}
    dense = [tensor for name, tensor in file.tensors.items() if name not in taken]
    embeddings = [t for t in dense if t.type is not None and t.type.block > 1]
    notes = [f"{t.name}: {t.type_name}, packed and not multiplied with: decoded when loaded" for t in embeddings]
    if file.big_endian:
        notes.append("big-endian: the header reads, loading needs a little-endian file")
    return Inspection(
        path=str(path),
        method=METHOD.GGUF.value if layers else "",
        format=FORMAT.GGUF.value if layers else "",
        writer=str(file.metadata.get("general.quantized_by", "")),
        source=f"GGUF version {file.version}, {file.architecture or 'no architecture'}",
        files={part.name: part.stat().st_size for part in file.parts},
        layers=layers,
        dense_tensors=len(dense),
        dense_size=sum(tensor.size for tensor in dense),
        dense_values=sum(tensor.values for tensor in dense),
        odd=tuple(odd_layers(layers)),
        contradictions=tuple(_contradictions(file)),
        notes=tuple(notes),
    )


def _contradictions(file: GgufFile) -> Iterator[str]:
    for tensor in file.tensors.values():
        if tensor.type is None:
            yield unknown_type(tensor)
    blocks = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    stated = file.metadata.get(f"{file.architecture}.block_count")
    if blocks and stated is not None and stated != len(blocks):
        yield f"{file.architecture}.block_count says {stated}, the tensors are of {len(blocks)} blocks"
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        return
    rows, width = embedding.shape
    for key, side in ((f"{file.architecture}.embedding_length", width), (f"{file.architecture}.vocab_size", rows)):
        if file.metadata.get(key, side) != side:
            yield f"{key} says {file.metadata[key]}, {embedding.name} has {side}"
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple) and len(tokens) > rows:
        yield f"tokenizer.ggml.tokens has {len(tokens)} entries, {embedding.name} has {rows} rows"
