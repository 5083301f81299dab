"""Reports from the field on choosing a backend, each turned into a test named after its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast

import pytest
from select_asks import ask
from select_hosts import BASE, HOSTS, LEVELS, accelerated, gpu, nvidia, wheel

from quantfarm.declare.names import ALIASES, BACKEND, DEVICE, FORMAT, METHOD, POLICIES, normalize_backend
from quantfarm.declare.registry import KERNELS
from quantfarm.errors import ConfigError, KernelRefused
from quantfarm.formats.config import parse
from quantfarm.select.check import check
from quantfarm.select.choose import choose
from quantfarm.select.explain import explain
from quantfarm.select.host import Host, read_settings
from quantfarm.select.request import Request
from quantfarm.select.selection import Selection

ASK = "gptq/gptq W4 g128 fp16"


def refused(request: Request, host: Host) -> Selection:
    """Return the trace of a request that must be refused."""
    with pytest.raises(KernelRefused) as caught:
        choose(request, host, KERNELS)
    return cast("Selection", caught.value.trace)


@pytest.mark.parametrize("name", ["PASCAL", "V100", "T4", "A100", "H200", "B200", "RTX5090"])
def test_r01_the_choice_passes_its_own_check(name: str) -> None:
    """On every capability the chosen record has no reason for exactly that device, as the contract supposes hosts."""
    host = HOSTS[f"ALL-{name}"]
    request = ask(ASK, host)
    chosen = choose(request, host, KERNELS).chosen
    assert chosen is not None
    assert check(chosen, request, host) == ()


@pytest.mark.parametrize("error", [OSError, ImportError, ValueError])
def test_r01_a_check_that_raises_is_passed_over(error: type[Exception]) -> None:
    """A record whose check raises keeps the text as its reason, and the next one is chosen."""

    class Broken(dict[DEVICE, Any]):
        def get(self, *_: object) -> Any:
            raise error("no such library")

    host = HOSTS["ALL-ADA"]
    best = choose(ask(ASK, host), host, KERNELS).chosen
    kernels = tuple(replace(s, devices=Broken()) if s is best else s for s in KERNELS)
    selection = choose(ask(ASK, host), host, kernels)
    assert best is not None
    assert selection.backend not in (None, best.backend)
    (reason,) = next(c.reasons for c in selection.trace if c.spec_name == best.name)
    assert (reason.code, f"{error.__name__}: no such library") == ("artifact_failed", reason.note)


R02_SETTINGS = {
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "desc_act": False,
    "quant_method": "gptq",
    "format": "gptq_v2",
    "checkpoint_format": "gptq_v2",
    "backend": "auto",
    "dataset": "c4",
    "cache_block_outputs": True,
    "model_seqlen": 2048,
    "block_name_to_quantize": None,
}


@pytest.mark.parametrize("backend", sorted({s.backend.value for s in KERNELS if FORMAT.GPTQ in s.formats}))
def test_r02_gptq_v2_is_accepted_or_the_format_is_named(backend: str) -> None:
    """Every backend that reads gptq either serves gptq_v2 or is refused with the format in the reason; case is free."""
    config = parse(R02_SETTINGS, source="config.json")
    assert (config.format, len([n for n in config.notes if "dataset" in n])) == (FORMAT.GPTQ_V2, 1)
    old = [alias for alias, target in ALIASES.items() if target.value == backend]
    seen = set()
    for name in (backend, backend.upper(), *old):
        selection = explain(ask("gptq/gptq_v2 W4 g128", HOSTS["ALL-H200"], name), HOSTS["ALL-H200"])
        seen.add((selection.request.backend, tuple(map(str, selection.trace[0].reasons))))
        reads = any(FORMAT.GPTQ_V2 in s.formats for s in KERNELS if s.backend.value == backend)
        assert reads or "gptq_v2" in str(selection.trace[0].reasons[0])
        assert reads is not any(reason.code == "format" for reason in selection.trace[0].reasons)
    assert len(seen) == 1


def test_r04_four_reasons_and_a_portable_backend() -> None:
    """Group 64, K = 8256, N = 1040, bf16 on a Hopper card: each refusal has its reasons, in order, as values."""
    host = HOSTS["ALL-H200-NO-ARTIFACTS"]
    text = "gptq/gptq W4 g64 K8256 N1040 bf16"
    selection = choose(ask(text, host), host, KERNELS)
    assert selection.backend is BACKEND.GPTQ_TORCH
    plain = json.loads(json.dumps(selection.as_json()))
    rows = {row["record"]: [reason["code"] for reason in row["reasons"]] for row in plain["trace"]}
    before = [row["record"] for row in plain["trace"]].index("gptq_torch")
    assert all(list(rows.values())[:before])
    assert len({code for codes in list(rows.values())[:before] for code in codes}) >= 4
    numbers = [row["priority"] for row in plain["trace"] if row["priority"] is not None]
    assert numbers == sorted(numbers, reverse=True)


def test_r05_a_wheel_on_a_card_that_is_too_old() -> None:
    """A library that loads is no proof that the card can run it: refused with ordinal, found and needed capability."""
    host = HOSTS["ALL-T4"]
    trace = refused(ask("awq/gemm W4 g128 fp16 on:cuda:0", host, "marlin"), host)
    reason = trace.trace[0].reasons[0]
    assert str(reason) == "arch_too_old on cuda:0: needs at least sm_80, got sm_75"
    assert choose(ask("awq/gemm W4 g128 fp16", host), host, KERNELS).backend is BACKEND.AWQ_EXLLAMA_V2


def test_r07_a_wheel_without_code_for_a_new_card() -> None:
    """Code for sm_80 and sm_90 on an sm_120 card: AUTO takes another and says why, the name is refused beforehand."""
    rows = [{"kernel": "marlin", "ops": [], "archs": ["sm_80", "sm_90"]}]
    card = HOSTS["ALL-RTX5090"]
    host = replace(
        card, artifacts={**card.artifacts, "cuda12": replace(card.artifacts["cuda12"], manifest={"kernels": rows})}
    )
    selection = choose(ask(ASK, host), host, KERNELS)
    reason = next(r for c in selection.ahead if c.backend is BACKEND.MARLIN for r in c.reasons)
    assert (reason.code, reason.got) == ("artifact_device", "sm_120")
    assert "sm_80, sm_90" in reason.need
    assert any(note.startswith(f"{selection.backend} instead of marlin") for note in selection.notes)
    with pytest.raises(KernelRefused, match=r'use backend="gptq_triton"'):
        choose(ask(ASK, host, "marlin"), host, KERNELS)


HEAVY = "{'torch', 'triton', 'bitsandbytes', 'vllm', 'mlx', 'numpy'} & sys.modules.keys()"


def test_r61_importing_opens_no_device() -> None:
    """Importing and listing backends pulls in neither torch nor an optional package, so a forked child is free."""
    script = (
        f"import os, sys, quantfarm; from quantfarm.declare.registry import KERNELS; assert len(KERNELS) > 50; "
        f"assert not {HEAVY}; child = os.fork(); "
        "os._exit(0) if child == 0 else sys.exit(os.waitpid(child, 0)[1])"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_r62_a_native_package_that_raises(error: str, tmp_path: Any) -> None:
    """A back-end package that raises when imported is never imported: everything else works, and the list is whole."""
    (tmp_path / "quantfarm_cpu").mkdir()
    (tmp_path / "quantfarm_cpu" / "__init__.py").write_text(f"raise {error}('no build for this machine')\n")
    (tmp_path / "quantfarm_cpu" / "manifest.json").write_text("{}")
    script = (
        "from quantfarm.select.host import probe; from quantfarm.select.explain import explain; "
        "from quantfarm.select.request import Request; from quantfarm.declare.scheme import Scheme; "
        "host = probe(use_torch=False); print(host.artifacts['cpu'].status); "
        "scheme = Scheme(bits=4, group_size=128, sym=True); "
        "print(len(explain(Request(method='gptq', format='gptq', scheme=scheme), host).trace) > 10)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == ["failed", "True"]


FOUR = {"ABSENT": "artifact_absent", "SKIPPED": "artifact_skipped", "WRONG-ABI": "artifact_wrong_abi"}


@pytest.mark.parametrize(("name", "code"), [*FOUR.items(), ("LOAD-FAILS", "artifact_failed")])
def test_r64_four_causes_are_four_reasons(name: str, code: str) -> None:
    """Each cause has its code, its note beside the choice, and with the strict switch it is an error with a command."""
    host = HOSTS[name]
    selection = choose(ask("gptq/gptq W4 g128 bf16", host), host, KERNELS)
    assert [reason.code for reason in selection.trace[0].reasons] == [code]
    assert any("instead of gptq_torch_cpu_avx512" in note for note in selection.notes)
    strict = replace(host, settings=replace(host.settings, strict=True))
    with pytest.raises(KernelRefused, match="QUANTFARM_STRICT is set") as caught:
        choose(ask("gptq/gptq W4 g128 bf16", strict), strict, KERNELS)
    assert "quantfarm-cpu" in str(caught.value) or "quantfarm[cpu]" in str(caught.value).splitlines()[-1]


def test_r65_a_backend_that_failed_is_not_chosen_again() -> None:
    """After a failure the backend is refused with the first error's text, by name too; the next one is chosen."""
    host = HOSTS["FAILED-ONCE"]
    selection = choose(ask("gptq/gptq W4 g128 bf16", host), host, KERNELS)
    reason = next(r for c in selection.trace if c.backend is BACKEND.GPTQ_TORCH_ATEN for r in c.reasons)
    assert (reason.code, reason.note) == ("runtime_failed", "RuntimeError: out of memory")
    assert refused(ask("gptq/gptq W4 g128 bf16", host, "gptq_torch_aten"), host).trace[0].reasons == (reason,)


def test_r67_the_first_cause_comes_first() -> None:
    """A forced level that the library lacks is the reason: asked for X, found Y and Z; an empty override is none."""
    held = wheel(kernels=[{"kernel": "int4_panel", "ops": [], "archs": LEVELS[1:]}])
    asked = "gptq/gptq W4 g128 bf16"
    forced = replace(BASE, artifacts=held, settings=read_settings({"QUANTFARM_CPU_ISA": "avx2"}))
    reason = refused(ask(asked, forced, "gptq_torch_cpu_avx512"), forced).trace[0].reasons[0]
    assert reason.code == "artifact_device"
    assert "x86_64_avx512, x86_64_avx512_vnni" in reason.need
    assert reason.note == "QUANTFARM_CPU_ISA asks for avx2"
    empty = replace(BASE, artifacts=held, settings=read_settings({"QUANTFARM_CPU_ISA": ""}))
    assert choose(ask(asked, empty, "gptq_torch_cpu_avx512"), empty, KERNELS).chosen is not None
    gone = replace(forced, artifacts=wheel("failed", "missing: libquantfarm_cpu.so"))
    assert "libquantfarm_cpu.so" in refused(ask(asked, gone, "gptq_torch_cpu_avx512"), gone).trace[0].reasons[0].note
    with pytest.raises(ConfigError, match="avx1024"):
        read_settings({"QUANTFARM_CPU_ISA": "avx1024"})


def test_r68_the_ordinal_is_never_lost() -> None:
    """Unlike cards: cuda:1 gets what runs there, both get what serves both, and a swap gives no stale answer."""
    host = HOSTS["ALL-UNLIKE"]
    assert choose(ask(f"{ASK} on:cuda:0", host), host, KERNELS).backend is BACKEND.MACHETE
    assert choose(ask(f"{ASK} on:cuda:1", host), host, KERNELS).backend is BACKEND.MARLIN
    both = choose(ask(f"{ASK} on:cuda:0+cuda:1", host), host, KERNELS)
    assert both.chosen is not None
    assert check(both.chosen, both.request, host) == ()
    cards = accelerated("cuda", *(replace(card, index=1 - card.index) for card in host.devices[:2]))
    swapped = replace(host, devices=cards.devices)
    assert choose(ask(f"{ASK} on:cuda:1", swapped), swapped, KERNELS).backend is BACKEND.MACHETE
    assert choose(ask(f"{ASK} on:cuda:0", swapped), swapped, KERNELS).backend is BACKEND.MARLIN


@pytest.mark.parametrize("name", [b.value for b in BACKEND] + list(ALIASES))
@pytest.mark.parametrize("host", ["CPU-BF16", "ALL-H200"])
def test_r97_a_name_is_used_or_refused(name: str, host: str) -> None:
    """Every name and alias is used, or refused with its own reasons; nothing takes its place."""
    wanted = normalize_backend(name, METHOD.GPTQ)
    selection = explain(ask(ASK, HOSTS[host], name), HOSTS[host])
    if wanted in POLICIES:
        assert selection.chosen is not None
    elif selection.chosen is None:
        assert selection.trace[0].backend is wanted
        assert selection.trace[0].reasons
    else:
        assert selection.backend is wanted


def test_new_cards_are_refused_or_served_before_a_launch() -> None:
    """A card newer than everything declared is served by open ranges and refused by closed ones, never by accident."""
    host = replace(HOSTS["ALL-GB10"], devices=nvidia("sm_130", 101376).devices)
    selection = choose(ask(ASK, host), host, KERNELS)
    codes = {c.spec_name: [r.code for r in c.reasons] for c in selection.trace}
    assert (codes["swordfish-gptq"], codes["machete-gptq"]) == (["arch"], ["arch", "device_limit"])
    assert codes["gptq_bitblas"] == ["arch_too_new"]
    assert gpu(DEVICE.CUDA, "sm_130").arch is not None
