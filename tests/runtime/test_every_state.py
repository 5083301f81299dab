"""State of every implemented record: stored tensors come back bit for bit, whatever happened, and edits are noticed."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from every_record import CASES, IDS, build, rows, usable
from support import layers
from support.cases import Case
from support.weights import Weight

from quantfarm.declare.registry import implemented_records
from quantfarm.declare.spec import KernelSpec
from quantfarm.runtime.linear import QuantLinear
from quantfarm.runtime.portable import PortablePath


def assert_stored(layer: QuantLinear, weight: Weight) -> None:
    """The state dict holds the checkpoint's tensors, all of them, without a changed bit or dtype."""
    state, wanted = layer.state_dict(), weight.tensors()
    assert wanted.keys() <= state.keys()
    for name, tensor in wanted.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(_octets(state[name]), _octets(tensor)), name


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, also a single number or a narrow float."""
    return tensor.reshape(-1).view(torch.uint8)


def _saved_and_loaded(layer: QuantLinear) -> QuantLinear:
    """Send a whole layer through torch.save; plain pickle fails in torch itself for 8-bit floats."""
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    back: QuantLinear = torch.load(stream, weights_only=False)
    return back


def test_every_implemented_record_is_met() -> None:
    """A record without a case here would be a record without a test."""
    met = {spec.name for spec, _ in CASES}
    assert met == {spec.name for spec in implemented_records() if usable(spec) and not spec.role}


@pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)
def test_stored_tensors_come_back_after_everything(spec: KernelSpec, case: Case) -> None:
    """Preparing, computing, moves of dtype, copies and pickles leave the stored tensors as they are."""
    weight, layer = build(spec, case)
    assert_stored(layer, weight)
    with torch.no_grad():
        first = layer(rows(case))
    assert_stored(layer, weight)
    for moved in (layer.half(), layer.double(), layer.to("cpu", torch.bfloat16)):
        assert_stored(moved, weight)
    for other in (copy.deepcopy(layer), _saved_and_loaded(layer)):
        assert_stored(other, weight)
        with torch.no_grad():
            assert torch.equal(other(rows(case)), first)


@pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)
def test_another_weight_is_taken_over(spec: KernelSpec, case: Case) -> None:
    """Loading a state gives what a layer built from that state gives, and the state comes back."""
    _, layer = build(spec, case)
    with torch.no_grad():
        layer(rows(case))
    weight, fresh = build(spec, case, seed=2)
    layer.load_state_dict(fresh.state_dict())
    assert_stored(layer, weight)
    with torch.no_grad():
        assert torch.equal(layer(rows(case)), fresh(rows(case)))


@pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)
def test_edits_of_source_tensors_are_noticed(spec: KernelSpec, case: Case) -> None:
    """Each buffer that is overwritten in place by another weight's shows in the next result, as if loaded."""
    _, layer = build(spec, case)
    other, fresh = build(spec, case, seed=2)
    with torch.no_grad():
        before = layer(rows(case))
        for name, buffer in layer.named_buffers():
            buffer.copy_(fresh.state_dict()[name])
        state = layer.state_dict()
        after = layer(rows(case))
    # What only the backend's own layout holds is no buffer; then the codes are still the old ones.
    assert not torch.equal(after, before)
    whole = all(torch.equal(_octets(state[name]), _octets(t)) for name, t in other.tensors().items())
    if whole:
        with torch.no_grad():
            layer.bias.copy_(fresh.bias)  # type: ignore[union-attr, arg-type]
            assert torch.equal(layer(rows(case)), fresh(rows(case)))


@pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)
def test_inference_tensors_need_a_cleared_cache(spec: KernelSpec, case: Case) -> None:
    """A weight edited through inference tensors, which carry no version, is right after clear_weight_cache()."""
    _, fresh = build(spec, case, seed=2)
    with torch.inference_mode():
        _, layer = build(spec, case)
        layer(rows(case))
        for name, buffer in layer.named_buffers():
            buffer.copy_(fresh.state_dict()[name])
        layer.clear_weight_cache()
        expected = QuantLinear(layer.reader(layer.checkpoint_tensors()), layers.backend_of(spec), spec, name="again")  # type: ignore[misc]
        assert torch.equal(layer(rows(case)), expected(rows(case)))


def test_a_portable_path_refuses_a_weight_elsewhere() -> None:
    """Preparing for another device than the tensors lie on is an error, not a copy."""
    spec, case = CASES[0]
    _, layer = build(spec, case)
    with pytest.raises(ValueError, match="needs device meta, got cpu"):
        PortablePath().prepare(layer.weight_tensor(), torch.device("meta"))
