"""What a layer holds: checkpoint bytes at any time, moves, edits in place, copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from layer_cases import Shape, backend_of, copied, layer, records, weight
from torch import nn

from quantfarm.declare.spec import KernelSpec
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime.cache import tensor_cache_key
from quantfarm.runtime.linear import QuantLinear

every_kernel = pytest.mark.parametrize("spec", records())
SHAPE = Shape(act_order=True, scale_dtype=torch.bfloat16)
BIAS = torch.randn(64)


def _stored(tensor: QuantTensor) -> dict[str, torch.Tensor]:
    assert tensor.codes is not None
    return {"qweight": tensor.codes, **tensor.source}


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) and left[name].dtype == right[name].dtype for name in left
    )


@every_kernel
def test_r26_r28_state_dict_is_the_checkpoint_at_any_time(spec: KernelSpec) -> None:
    """R26, R28: names, dtypes and bytes are those of the checkpoint, before and after calls and dtype moves."""
    expected = _stored(weight(SHAPE, BIAS))
    fc = layer(spec, SHAPE, BIAS)
    assert _same(dict(fc.state_dict()), expected)
    fc(torch.randn(2, 256).to(torch.bfloat16))
    fc.half().float().to(torch.bfloat16)
    assert _same(dict(fc.state_dict()), expected)
    assert torch.equal(fc.qweight, expected["qweight"])


@every_kernel
def test_r28_packed_data_is_not_in_the_state(spec: KernelSpec) -> None:
    """R28: only the device-neutral form is saved, and the source is dropped where the layout can be inverted."""
    fc = layer(spec)
    assert set(fc.state_dict()) == {"qweight", "qzeros", "scales"}
    assert (fc._tensor.codes is None) is not spec.features.keeps_source


@every_kernel
def test_loading_a_state_rebuilds_the_layout(spec: KernelSpec) -> None:
    """E10: after load_state_dict the new weight computes, through a model and its prefix too."""
    other = Shape(act_order=True, scale_dtype=torch.bfloat16, seed=1)
    fc, model = layer(spec, SHAPE, BIAS), nn.ModuleDict({"fc": layer(spec, SHAPE, BIAS)})
    expected = layer(spec, other, -BIAS)
    x = torch.randn(3, 256).to(torch.bfloat16)
    assert not torch.equal(fc(x), expected(x))
    fc.load_state_dict(expected.state_dict())
    model.load_state_dict({f"fc.{name}": t for name, t in expected.state_dict().items()})
    assert torch.equal(fc(x), expected(x))
    assert torch.equal(model["fc"](x), expected(x))
    assert _same(dict(fc.state_dict()), dict(expected.state_dict()))


@every_kernel
def test_wrong_states_are_refused_by_name(spec: KernelSpec) -> None:
    """Missing, surplus and misshapen tensors are named, and a misshapen one leaves the old weight in place."""
    fc = layer(spec)
    x, state = torch.randn(3, 256).to(torch.bfloat16), dict(layer(spec, Shape(seed=1)).state_dict())
    before = fc(x)
    with pytest.raises(RuntimeError, match=r"Missing key.*qzeros"):
        fc.load_state_dict({name: t for name, t in state.items() if name != "qzeros"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*weight"):
        fc.load_state_dict(state | {"weight": torch.zeros(1)})
    fc = layer(spec)
    with pytest.raises(RuntimeError, match=r"scales: needs shape \[4, 64\], got \[3, 64\]"):
        fc.load_state_dict(state | {"scales": state["scales"][:3]})
    assert torch.equal(fc(x), before)


@every_kernel
@pytest.mark.parametrize("name", ["scales", "qzeros"])
def test_edits_in_place_are_noticed(spec: KernelSpec, name: str) -> None:
    """E10: editing a source tensor in place changes the next result to that of the edited checkpoint."""
    fc = layer(spec)
    x = torch.randn(3, 256).to(torch.bfloat16)
    before = fc(x)
    with torch.no_grad():
        getattr(fc, name)[0].mul_(0)
    edited = dict(fc.state_dict())
    fresh = layer(spec)
    fresh.load_state_dict(edited)
    assert not torch.equal(fc(x), before)
    assert torch.equal(fc(x), fresh(x))


@every_kernel
def test_edited_inference_tensors_need_the_cache_cleared(spec: KernelSpec) -> None:
    """B5: tensors without a version are followed after clear_weight_cache()."""
    with torch.inference_mode():
        tensor = copied(weight(Shape()))
        fc = QuantLinear(tensor, backend_of(spec), spec)
        x = torch.randn(3, 256).to(torch.bfloat16)
        fc(x)
        fc.scales.mul_(0)
        fc.clear_weight_cache()
        assert not fc(x).any()


@every_kernel
def test_moving_away_and_copies(spec: KernelSpec) -> None:
    """R28: a move to another device keeps shapes and drops the layout; copies compute the same and share nothing."""
    fc = layer(spec, SHAPE, BIAS)
    x = torch.randn(3, 256).to(torch.bfloat16)
    for twin in (copy.deepcopy(fc), pickle.loads(pickle.dumps(fc))):
        assert torch.equal(twin(x), fc(x))
        twin.scales.zero_()
        assert not torch.equal(twin(x), fc(x))
    fc.to("meta")
    assert {name: (t.shape, t.device.type) for name, t in fc.state_dict().items()} == {
        name: (t.shape, "meta") for name, t in _stored(weight(SHAPE, BIAS)).items()
    }


def test_cache_key_sees_what_shape_and_pointer_hide() -> None:
    """B4: an edit in place, a new dtype and another tensor at the same place change the key; nothing else does."""
    tensor = torch.zeros(4)
    key = tensor_cache_key(tensor)
    assert tensor_cache_key(tensor) == key
    tensor.add_(1)
    assert tensor_cache_key(tensor) != key
    assert tensor_cache_key(tensor.view(torch.int32)) != tensor_cache_key(tensor)
    assert tensor_cache_key(tensor.detach()) != tensor_cache_key(tensor)
    assert tensor_cache_key(None) == ()
