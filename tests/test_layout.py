"""The budgets, the import arrows and the habits that keep the project readable, enforced from the first commit."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys

import layout_rules as rules
import pytest

from quantfarm import __version__
from quantfarm.declare.names import BACKEND, FORMAT, LEGACY, METHOD, POLICIES
from quantfarm.declare.registry import KERNELS, TIES
from quantfarm.declare.spec import ArtifactKind

FILE_LIMIT, MEDIAN_LIMIT, FUNCTION_LIMIT, FUNCTION_P95, PARAMETER_LIMIT = 400, 150, 60, 40, 6
LONG_KERNEL_SOURCES: dict[str, str] = {}
"""Kernel sources under csrc/ without a natural seam, up to 600 lines, with the reason."""


def test_no_hand_written_file_is_too_long() -> None:
    """A file fits in one reading: fewer than 400 lines, tests included."""
    sizes = {rules.where(p): len(p.read_text(encoding="utf-8").splitlines()) for p in rules.hand_written()}
    too_long = {name: n for name, n in sizes.items() if n >= (600 if name in LONG_KERNEL_SOURCES else FILE_LIMIT)}
    assert too_long == {}


def test_median_file_is_short() -> None:
    """Half of the Python files have at most 150 lines."""
    sizes = [len(p.read_text(encoding="utf-8").splitlines()) for p in rules.python_files()]
    assert statistics.median(sizes) <= MEDIAN_LIMIT


def test_functions_fit_on_a_screen() -> None:
    """No function is longer than 60 lines and 95 of 100 have at most 40."""
    lengths = {
        f"{rules.where(p, f.lineno)} {f.name}": rules.length(f)
        for p in rules.python_files()
        for f in rules.functions(p)
    }
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LIMIT} == {}
    assert statistics.quantiles(lengths.values(), n=20)[-1] <= FUNCTION_P95


def test_functions_take_few_parameters() -> None:
    """More than six parameters become a record; signatures fixed from outside are listed with the reason."""
    found = {}
    for path in rules.python_files(rules.FRONT, rules.FARM):
        for function in rules.functions(path):
            module = ".".join(
                path.relative_to(rules.FRONT.parent if rules.FRONT in path.parents else rules.FARM.parent)
                .with_suffix("")
                .parts
            )
            name = f"{module}.{function.name}"
            if rules.parameters(function) > PARAMETER_LIMIT and name not in rules.PARAMETER_EXCEPTIONS:
                found[name] = rules.parameters(function)
    assert found == {}


def test_every_function_is_annotated() -> None:
    """Each parameter and each return value carries a type, in tests too."""
    bare = []
    for path in rules.python_files():
        for function in rules.functions(path):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            missing = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            if missing or function.returns is None:
                bare.append(f"{rules.where(path, function.lineno)} {function.name}")
    assert bare == []


def test_every_public_name_has_a_docstring() -> None:
    """Modules, public classes and public functions of the product say what they are for."""
    silent = []
    for path in rules.python_files(rules.FRONT, rules.FARM):
        module = rules.tree(path)
        if path.name != "__init__.py" and ast.get_docstring(module) is None:
            silent.append(rules.where(path))
        for node in ast.walk(module):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None and not _is_nested(module, node):
                silent.append(f"{rules.where(path, node.lineno)} {node.name}")
    assert silent == []


def _is_nested(module: ast.Module, node: ast.AST) -> bool:
    return any(isinstance(f, ast.FunctionDef) and node is not f and node in ast.walk(f) for f in ast.walk(module))


def test_import_arrows_hold() -> None:
    """A folder imports only what the table of arrows allows; relative imports do not occur."""
    broken = []
    for path in rules.python_files(rules.FRONT):
        relative = path.relative_to(rules.FRONT)
        home = relative.parts[0].removesuffix(".py")
        allowed = rules.ARROWS.get(home, set()) | rules.EXTRA_ARROWS.get(relative.as_posix(), set())
        for line, name in rules.imports_of(path):
            if name.startswith("."):
                broken.append(f"{rules.where(path, line)} relative import")
            if not name.startswith("quantfarm.") or home == "__init__":
                continue
            target = name.removeprefix("quantfarm.")
            if target in ("__version__", "callable_package.make_callable"):
                continue
            if not any(target == a or target.startswith(f"{a}.") for a in allowed):
                broken.append(f"{rules.where(path, line)} {home} may not import {name}")
    assert broken == []


def test_a_kernel_never_imports_another_kernel() -> None:
    """A kernel folder imports its own files only, and its spec imports declarations only."""
    broken = []
    for path in rules.python_files(rules.FRONT / "kernels"):
        kernel = path.parent.name
        for line, name in rules.imports_of(path):
            foreign = name.startswith("quantfarm.kernels.") and not name.startswith(f"quantfarm.kernels.{kernel}.")
            outside = path.name == "spec.py" and not name.startswith(("quantfarm.declare.", "__future__"))
            if foreign or outside:
                broken.append(f"{rules.where(path, line)} {name}")
    assert broken == []


def test_kernel_specs_hold_records_only() -> None:
    """A spec.py is data: a docstring, imports and assignments, without branches, loops or functions."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    for path in rules.FRONT.glob("kernels/*/spec.py"):
        for node in rules.tree(path).body:
            assert isinstance(node, allowed), rules.where(path, node.lineno)
            assert not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant), rules.where(
                path, node.lineno
            )


def test_light_modules_import_no_heavy_package() -> None:
    """The reader table and the declarations import neither torch nor numpy."""
    for path in [*rules.python_files(rules.FRONT / "declare"), rules.FRONT / "formats" / "table.py"]:
        heavy = [name for _, name in rules.imports_of(path) if name.split(".")[0] in ("torch", "numpy", "safetensors")]
        assert heavy == [], rules.where(path)


def test_the_farm_imports_declarations_only() -> None:
    """The farm reads quantfarm.declare and nothing else of the front."""
    for path in rules.python_files(rules.FARM):
        for line, name in rules.imports_of(path):
            assert not name.startswith("quantfarm") or name.startswith("quantfarm.declare"), rules.where(path, line)


def test_no_code_mentions_a_backend_by_name() -> None:
    """Backends are named where they are declared; elsewhere they are values that flow through."""
    other_words = {m.value for m in (*METHOD, *FORMAT)} | {
        "torch",
        "triton",
        "vllm",
        "sglang",
        "mlx",
        "bitblas",
        "bitsandbytes",
    }
    values = {b.value for b in BACKEND if b not in POLICIES} - other_words
    mentions = []
    for path in [*rules.python_files(rules.FRONT, rules.FARM, rules.ROOT / "hardware-tests")]:
        relative = path.relative_to(rules.ROOT).as_posix()
        if (
            relative.endswith(("declare/names.py", "declare/registry.py", "formats/table.py"))
            or "/kernels/" in relative
        ):
            continue
        for node in ast.walk(rules.tree(path)):
            literal = isinstance(node, ast.Constant) and node.value in values
            member = (
                isinstance(node, ast.Attribute)
                and ast.unparse(node.value).endswith("BACKEND")
                and node.attr in BACKEND.__members__
            )
            if literal or (member and BACKEND[node.attr] not in POLICIES):
                mentions.append(f"{rules.where(path, node.lineno)} {ast.unparse(node)}")
    assert mentions == []


def test_no_code_branches_on_a_kernel_name() -> None:
    """A comparison with the name of a kernel folder is a fact that belongs in its record."""
    kernels = {spec.kernel for spec in KERNELS}
    for path in rules.python_files(rules.FRONT, rules.FARM):
        for node in ast.walk(rules.tree(path)):
            if isinstance(node, ast.Compare):
                constants = {
                    c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)
                }
                assert not constants & kernels, rules.where(path, node.lineno)


def test_one_file_reads_the_environment() -> None:
    """select/host.py is the only reader of environment variables, and it reads at most five."""
    readers, names = set(), set()
    for path in rules.python_files(rules.FRONT):
        text = path.read_text(encoding="utf-8")
        if re.search(r"\bos\.(environ|getenv)\b|from os import environ", text):
            readers.add(rules.where(path))
        names |= set(re.findall(r"\"(QUANTFARM_[A-Z_]+)\"", text))
    assert readers <= {rules.where(rules.FRONT / "select" / "host.py")}
    assert len(names) <= 5


def test_one_broad_except() -> None:
    """Only the loader of native libraries may catch everything; it keeps the exception as a value."""
    broad = []
    for path in rules.python_files(rules.FRONT, rules.FARM):
        for node in ast.walk(rules.tree(path)):
            if isinstance(node, ast.ExceptHandler):
                caught = "" if node.type is None else ast.unparse(node.type)
                if caught == "" or re.search(r"\b(Base)?Exception\b", caught):
                    broad.append(rules.where(path))
    assert broad in ([], [rules.where(rules.FRONT / "runtime" / "artifacts.py")])


def test_registry_lines_have_their_folders() -> None:
    """Each record has its folder with spec and notes; one with code has its backend too, and its csrc folder if native.

    The notes of a folder without code say what is missing, those of a folder with code do not: so no code gets lost.
    """
    for spec in KERNELS:
        folder = rules.FRONT / "kernels" / spec.kernel
        for name in ("__init__.py", "spec.py"):
            assert (folder / name).is_file(), f"{spec.name}: {name}"
        written = (folder / "backend.py").is_file()
        missing = "## What is missing" in (folder / "NOTES.md").read_text(encoding="utf-8")
        assert written is not missing, spec.name
        if written and spec.artifact.kind is ArtifactKind.NATIVE:
            device = "cpu" if spec.artifact.library == "cpu" else "device"
            assert (rules.ROOT / "csrc" / device / spec.kernel).is_dir(), spec.name
    assert len({spec.name for spec in KERNELS}) == len(KERNELS)
    folders = {path.parent.name for path in rules.FRONT.glob("kernels/*/spec.py")}
    assert folders == {spec.kernel for spec in KERNELS}


def test_every_tie_is_listed() -> None:
    """Two records of equal priority for one pair stand in the tie list, so that the order is a decision."""
    listed = {(tie.method, tie.format, frozenset(tie.order)) for tie in TIES}
    seen: dict[tuple[METHOD, FORMAT, int], set[BACKEND]] = {}
    for spec in KERNELS:
        for fmt, priority in spec.priorities.items():
            if priority > 0:
                seen.setdefault((spec.method, fmt, priority), set()).add(spec.backend)
    for (method, fmt, _), backends in seen.items():
        assert len(backends) == 1 or (method, fmt, frozenset(backends)) in listed, backends


def test_versions_agree() -> None:
    """Front, back ends and the extras that pin them carry one version."""
    front = (rules.ROOT / "package/quantfarm/pyproject.toml").read_text(encoding="utf-8")
    pins = re.findall(r"quantfarm-\w+==([\w.]+)", front)
    assert pins
    assert set(pins) == {__version__}
    for path in rules.ROOT.glob("package/quantfarm-*/pyproject.toml"):
        assert f'version = "{__version__}"' in path.read_text(encoding="utf-8"), rules.where(path)


def test_import_is_light() -> None:
    """Importing the package and reading its names pulls in neither torch nor numpy nor typer."""
    script = "import sys, quantfarm; quantfarm.BACKEND; print({'torch', 'numpy', 'typer'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", list(rules.ROOT.glob(".github/workflows/*.yml")), ids=lambda p: p.name)
def test_workflows_only_call_nox(path: rules.Path) -> None:
    """A workflow step either checks out or calls a nox session; limits and permissions are set."""
    text = path.read_text(encoding="utf-8")
    runs = re.findall(r"^\s*- run: (.*)$", text, flags=re.MULTILINE)
    assert runs
    assert all(re.fullmatch(r"(python3 noxfile\.py|nox) -s [\w-]+( -- [\w\s.-]+)?", r) for r in runs), runs
    uses = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", u) for u in uses), uses
    assert "permissions:" in text
    assert text.count("timeout-minutes:") == text.count("runs-on:")


def test_the_project_names_no_machine() -> None:
    """Nothing that people read names a path of a build machine, a registry host or the tools of a workplace."""
    forbidden = re.compile(
        r"/wor" r"k/|/tm" r"p/bash_jobs|pythonhoste" r"d|pypi\.or" r"g|deb\.debia" r"n|npmj" r"s|/roo" r"t/"
    )
    found = []
    for path in rules.tracked():
        if path.suffix in {".safetensors", ".jsonl"} or "tests/data" in path.as_posix():
            continue
        for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if forbidden.search(text):
                found.append(rules.where(path, number))
    assert found == []


def test_legacy_members_are_members_of_their_own() -> None:
    """A legacy member is no alias of the member it stands for, so that saved arguments keep loading."""
    for member, table in LEGACY.items():
        assert all(member is not target for target in table.values())
