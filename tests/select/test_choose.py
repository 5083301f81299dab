"""What choosing promises for every request and host, and the texts it makes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from select_asks import ask
from select_hosts import BASE, HOSTS

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD, POLICIES, normalize_backend
from quantfarm.declare.registry import KERNELS, Tie
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import KernelRefused
from quantfarm.select import choose as choose_module
from quantfarm.select.choose import choose, ordered, select
from quantfarm.select.explain import as_text, explain
from quantfarm.select.host import Host, Settings
from quantfarm.select.overrides import read_overrides
from quantfarm.select.pairs import FORMATS_OF, kind_of
from quantfarm.select.request import Device, Request
from quantfarm.select.selection import Selection

PAIRS = [(method, fmt) for method, formats in FORMATS_OF.items() for fmt in formats]
USUAL = [(METHOD.GPTQ, FORMAT.GPTQ), (METHOD.GPTQ, FORMAT.GPTQ_V2), (METHOD.AWQ, FORMAT.GEMM)]
OVERRIDES: list[dict[str, dict[str, Any]]] = [
    {},
    {},
    {},
    {"-:head": {}},
    {"mlp.*": {"bits": 8}},
    {"a": {"bits": 3}, "b": {"sym": False}},
]
ASK = "gptq/gptq W4 g128 bf16"


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw any request over every pair of method and format."""
    method, fmt = draw(st.sampled_from(USUAL) | st.sampled_from(PAIRS))
    bits = draw(st.sampled_from([1, 2, 3, 4, 4, 5, 8, 12]))
    scheme = Scheme(
        weight_kind=kind_of(method, fmt, bits),
        bits=bits,
        group_size=draw(st.sampled_from([-1, 16, 32, 64, 128, 256, 512, 1024])),
        sym=draw(st.booleans()),
        act_order=draw(st.booleans()),
    )
    devices = st.builds(Device, st.sampled_from([d for d in DEVICE if d is not DEVICE.ALL]), st.sampled_from([None, 0]))
    return Request(
        method=method,
        format=fmt,
        scheme=scheme,
        in_features=draw(st.none() | st.integers(1, 600) | st.sampled_from([1024, 4096, 8256])),
        out_features=draw(st.none() | st.integers(1, 600) | st.sampled_from([1024, 4096])),
        activation_dtype=draw(st.sampled_from([None, "float16", "float16", "bfloat16", "float32", "float64"])),
        pack_dtype=draw(st.sampled_from(["int32", "int32", "int16"])),
        code_type=draw(st.sampled_from(["", "", "q1_0", "q2_0", "q4_k"])) if fmt is FORMAT.GGUF else "",
        zeros_differ=draw(st.booleans()),
        rows=draw(st.sampled_from([None, 1, 64])),
        dynamic=read_overrides(draw(st.sampled_from(OVERRIDES))),
        devices=tuple(draw(st.lists(devices, max_size=2))),
        backend=draw(st.sampled_from([BACKEND.AUTO, BACKEND.AUTO, BACKEND.AUTO_TRAINABLE])),
        trainable=draw(st.booleans()),
        adapter=draw(st.sampled_from([None, "lora", "dora"])),
        sharded=draw(st.booleans()),
        packing=draw(st.booleans()),
    )


@settings(max_examples=400, deadline=None)
@given(request=requests(), name=st.sampled_from(sorted(HOSTS)))
def test_the_choice_is_the_best_usable_one(request: Request, name: str) -> None:
    """The choice has no reason, every better one has one, and asking for the choice by name gives it again."""
    host = replace(HOSTS[name], settings=Settings())
    selection = explain(request, host)
    if selection.chosen is None:
        assert all(candidate.reasons and not candidate.usable for candidate in selection.trace)
        with pytest.raises(KernelRefused):
            select(request, host)
        return
    mine = selection.trace[len(selection.ahead)]
    assert (mine.spec_name, mine.reasons, mine.usable) == (selection.chosen.name, (), True)
    assert all(candidate.reasons for candidate in selection.ahead)
    passed = [c for c in selection.ahead if c.usable]
    assert all([r.code for r in c.reasons] == ["prefer_trainable"] and c.inference_only for c in passed)
    named = replace(request, backend=selection.chosen.backend, trainable=request.needs_gradients)
    assert select(named, host).chosen is selection.chosen


@settings(max_examples=50, deadline=None)
@given(request=requests(), name=st.sampled_from(sorted(HOSTS)))
def test_json_and_text_hold_the_same_candidates(request: Request, name: str) -> None:
    """The JSON form can be written out, and the text shows every candidate that it lists."""
    selection = explain(request, HOSTS[name])
    plain = json.loads(json.dumps(selection.as_json()))
    text = as_text(selection)
    assert all(row["record"] in text for row in plain["trace"])
    assert all(reason["code"] in text for row in plain["trace"] if not row["usable"] for reason in row["reasons"])


def refused(text: str, host: Host, backend: str = "auto") -> tuple[str, Selection]:
    """Return the message and the trace of a request that must be refused."""
    with pytest.raises(KernelRefused) as caught:
        choose(ask(text, host, backend), host, KERNELS)
    return str(caught.value), cast("Selection", caught.value.trace)


def test_a_named_backend_is_refused_with_its_reasons_and_an_alternative() -> None:
    """The message says what was asked, why not, what would run instead, and ends with one thing to do."""
    message, _ = refused("gptq/gptq W4 g128 K4096 N11008 bf16", HOSTS["CPU-AVX512"], "gptq_torch_cpu_avx512")
    lines = message.splitlines()
    assert lines[:3] == [
        "cannot run GPTQ int4 g128 sym, K=4096 N=11008, bf16, on cpu: backend gptq_torch_cpu_avx512 was asked for",
        "  gptq_torch_cpu_avx512  cpu_feature on cpu: needs avx512_bf16, got avx512_vnni",
        "  gptq_torch_aten        usable",
    ]
    assert "  gptq_torch             usable" in lines
    assert all("usable" in line for line in lines[2:-1])
    assert lines[-1] == 'use backend="gptq_torch_aten", or leave backend unset'


def test_a_broken_library_asked_by_name_gives_the_loaders_words_and_the_fix() -> None:
    """The loader's own text is kept and the last line is the command that repairs the installation."""
    message, _ = refused(ASK, HOSTS["WRONG-ABI"], "gptq_torch_cpu_avx512")
    assert "artifact_wrong_abi: needs a library of this version of quantfarm and torch" in message
    assert "quantfarm-cpu: needs 0.1.0, got 0.0.9" in message
    assert message.splitlines()[-1].startswith("pip install --force-reinstall --no-deps quantfarm-cpu==0.1.0")


def test_strict_refuses_a_slower_choice() -> None:
    """With the strict switch, a faster backend lost to the installation is an error with the install command."""
    message, trace = refused(ASK, HOSTS["STRICT-ABSENT"])
    assert "QUANTFARM_STRICT is set" in message
    assert message.splitlines()[-1].startswith('pip install "quantfarm[cpu]==0.1.0"')
    assert trace.chosen is not None


def test_a_lost_faster_backend_is_noted() -> None:
    """Without the switch, the note names the faster backend, what replaced it, and why."""
    notes = explain(ask(ASK, HOSTS["ABSENT"]), HOSTS["ABSENT"]).notes
    assert len(notes) == 1
    assert "gptq_torch_aten instead of gptq_torch_cpu_avx512" in notes[0]
    assert "needs quantfarm-cpu 0.1.0, got none" in notes[0]


def test_an_old_rocm_is_told_and_not_refused() -> None:
    """A ROCm below the floor gives a note beside the choice; a newer one, and another family, give none."""
    host = HOSTS["R9700"]
    for version, told in (("7.1", True), ("10.1", False)):
        selection = explain(ask(ASK, host), replace(host, versions={**host.versions, "rocm": version}))
        assert selection.backend is BACKEND.GPTQ_TORCH
        assert any(note.startswith("rocm 7.1 is older than 10.1") for note in selection.notes) is told


def test_what_nobody_asked_is_unchecked() -> None:
    """A request without shape and dtype says that neither was checked."""
    request = Request(method="gptq", format="gptq", scheme=Scheme(bits=4, group_size=128, sym=True))  # type: ignore[arg-type]
    assert "unchecked: shape, dtype" in explain(request, BASE).notes


def test_a_family_name_without_entry_lists_the_valid_members() -> None:
    """A legacy member that means nothing for the method is refused with the members that do."""
    message, _ = refused("awq/gemm W4 g128 bf16", BASE, "triton")
    assert "format: needs a backend of awq" in message
    assert "awq_torch" in message


@pytest.mark.parametrize("backend", [backend for backend in BACKEND if backend not in POLICIES])
def test_a_member_is_used_or_refused_by_name(backend: BACKEND) -> None:
    """No name is replaced by another: it runs, or the error says that nobody declared it or what is valid."""
    try:
        selection = choose(ask(ASK, BASE, backend.value), BASE, KERNELS)
    except KernelRefused as error:
        first = cast("Selection", error.trace).trace[0]
        assert first.backend is normalize_backend(backend, METHOD.GPTQ)
        assert first.reasons
    else:
        assert selection.backend is selection.request.backend


def test_order_is_priority_then_name_then_listed_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal priorities go by backend value downwards, unless the tie list says otherwise."""
    request = ask(ASK, BASE)
    level = tuple(replace(s, priorities={FORMAT.GPTQ: 7}) for s in KERNELS if s.method is METHOD.GPTQ)
    values = [s.backend.value for s in ordered(request, level)]
    assert values == sorted(values, reverse=True)
    tie = Tie(
        method=METHOD.GPTQ,
        format=FORMAT.GPTQ,
        order=(BACKEND.GPTQ_TORCH, BACKEND.GPTQ_TORCH_CPU_AVX512),
        reason="a test",
    )
    monkeypatch.setattr(choose_module, "TIES", (tie,))
    assert [s.backend.value for s in ordered(request, level)][:2] == [b.value for b in tie.order]


def test_a_check_that_raises_costs_only_its_own_record() -> None:
    """A faulty record is passed over with its text kept, and the next one is chosen."""
    broken = replace(KERNELS[0], devices=cast("dict[DEVICE, object]", None))  # type: ignore[arg-type]
    selection = choose(ask(ASK, BASE), BASE, (broken, *KERNELS[1:]))
    first = selection.trace[0]
    assert [r.code for r in first.reasons] == ["artifact_failed"]
    assert "AttributeError" in first.reasons[0].note
    assert selection.backend is BACKEND.GPTQ_TORCH_ATEN
