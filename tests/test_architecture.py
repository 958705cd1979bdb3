"""Who may import whom, and habits that no reviewer should have to look for."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("boc", "encoders", "indexing")
FILES = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]
TORCH = {"torch", "transformers", "tokenizers", "safetensors", "sentence_transformers"}

# Folder or module of ``boc``, or one of the other packages -> what it may import besides itself. A
# new one needs a row.
CORE = (
    "errors",
    "atomic_files",
    "foreign",
    "models",
    "names",
    "outputs",
    "paths",
    "types",
    "manifest",
    "plan",
    "plugins",
    "topk",
    "vectors",
    "labels",
    "remarks",
    "progress",
)
BASE = {"boc", *(f"boc.{name}" for name in CORE)}
MAY = {
    "boc": set(),
    "boc.errors": {"boc"},
    "boc.atomic_files": {"boc", "boc.errors"},
    "boc.names": {"boc"},
    "boc.outputs": {"boc", "boc.errors", "boc.atomic_files"},
    "boc.paths": {"boc"},
    "boc.types": {"boc", "boc.errors", "boc.names", "boc.paths", "boc.vectors"},
    "boc.foreign": {"boc", "boc.atomic_files"},
    "boc.manifest": {"boc", "boc.errors", "boc.foreign", "boc.names", "boc.types"},
    "boc.models": {"boc", "boc.errors", "boc.foreign", "boc.atomic_files"},
    "boc.plugins": {
        "boc",
        "boc.errors",
        "boc.names",
        "boc.paths",
        "boc.types",
        "boc.manifest",
        "boc.models",
        "boc.vectors",
    },
    "boc.remarks": {
        "boc",
        "boc.atomic_files",
        "boc.errors",
        "boc.foreign",
        "boc.labels",
        "boc.paths",
    },
    "boc.labels": {
        "boc",
        "boc.errors",
        "boc.foreign",
        "boc.types",
        "boc.plugins",
        "boc.vectors",
    },
    "boc.plan": {"boc"},
    "boc.topk": {"boc", "boc.vectors"},
    "boc.progress": {"boc"},
    "boc.vectors": {"boc", "boc.errors"},
    "boc.prefetch": {"boc"},
    "boc.inputs": BASE,
    "boc.rerank": BASE | {"boc.prefetch"},
    "boc.clustering": BASE | {"boc.inputs", "boc.prefetch"},
    "boc.codecs": BASE | {"boc.clustering"},
    "boc.search": BASE | {"boc.codecs", "boc.inputs", "boc.rerank"},
    "boc.manage": BASE | {"boc.codecs", "boc.inputs", "boc.prefetch", "boc.rerank", "boc.search"},
    "boc.explain": BASE | {"boc.codecs", "boc.inputs", "boc.rerank", "boc.search"},
    "boc.evaluate": BASE | {"boc.codecs", "boc.manage", "boc.inputs", "boc.rerank", "boc.search"},
    "boc.index": BASE
    | {"boc.codecs", "boc.evaluate", "boc.explain", "boc.manage", "boc.inputs", "boc.search"},
    "boc.doctor": BASE,
    "boc.web": BASE | {"boc.codecs", "boc.explain", "boc.inputs", "boc.manage", "boc.search"},
    "encoders": BASE | {"boc.clustering", "boc.codecs", "boc.evaluate", "boc.inputs", "boc.rerank"},
    "indexing": BASE | {"boc.inputs", "boc.rerank"},
}
MAY["boc.cli"] = set(MAY) - {"encoders", "indexing"}
# Under TYPE_CHECKING only.
ANNOTATIONS = {
    "boc": {
        "boc.errors",
        "boc.evaluate",
        "boc.explain",
        "boc.index",
        "boc.manage",
        "boc.search",
        "boc.types",
    },
    "boc.codecs": {"boc.clustering"},
    "boc.plan": {"boc.plugins", "boc.types"},
    "boc.plugins": {"boc.plan", "indexing"},
    "boc.manage": {"indexing"},
    "boc.search": {"indexing"},
    "boc.cli": {"encoders"},
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The row of ``MAY`` that a module of ours belongs to."""
    head, *rest = module.split(".")
    return f"{head}.{rest[0]}" if head == "boc" and rest else head


@cache
def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    return list(walked_imports(path))


def walked_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Full names of the modules that a file imports anywhere in it, and whether for annotations
    only."""
    tree = parsed(path)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        and isinstance(block.test, ast.Name)
        and block.test.id == "TYPE_CHECKING"
        for child in block.body
        for node in ast.walk(child)
    }
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{module}.{alias.name}"
                yield (
                    deeper if module.split(".")[0] in OURS and exists(deeper) else module,
                    id(node) in typing_only,
                )


def caught_anything(tree: ast.AST, module: str) -> list[ast.ExceptHandler]:
    """The handlers that may be of any exception: around the decoders of pictures, and the libraries
    of models."""
    around = {"boc.inputs.images": "decoding", "encoders.networks.foreign": "reading_model"}.get(
        module,
    )
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == around
    ]
    return [
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler)
    ]


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """The calls of names, and of names of modules and objects."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(name) | ast.Attribute(ast.Name(_), name):
                    yield (
                        node,
                        f"{node.func.value.id}.{name}"
                        if isinstance(node.func, ast.Attribute)
                        else name,
                    )


def test_the_walk_sees_what_it_should():
    assert len(FILES) > 40
    seen = dict(imports(ROOT / "boc" / "plugins.py"))
    assert seen["boc.manifest"] is True
    assert seen["boc.errors"] is False
    assert dict(imports(ROOT / "encoders" / "tern.py"))["encoders.runtime.set_encoder"] is False


def test_the_table_has_no_circle():
    done = set()
    while ready := {part for part, allowed in MAY.items() if part not in done and allowed <= done}:
        done |= ready
    assert done == set(MAY)


def imports_go_one_way(path: Path) -> None:
    part = part_of(name_of(path))
    assert part in MAY, f"{part} needs a row in the table of {Path(__file__).name}"
    for module, typing_only in imports(path):
        if module.split(".")[0] in OURS:
            allowed = MAY[part] | {part} | (ANNOTATIONS.get(part, set()) if typing_only else set())
            assert part_of(module) in allowed, f"{name_of(path)} imports {module}"


def torch_lives_in_encoders(path: Path) -> None:
    heavy = {module.split(".")[0] for module, _ in imports(path)} & TORCH
    assert not heavy or part_of(name_of(path)) == "encoders"


def nothing_prints_or_catches_everything_or_unpickles(path: Path) -> None:
    tree = parsed(path)
    anything = caught_anything(tree, name_of(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node not in anything:
            assert node.type is not None, f"line {node.lineno}: except without a class"
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
            assert caught.isdisjoint({"Exception", "BaseException"}), (
                f"line {node.lineno}: broad except"
            )
        elif isinstance(node, ast.ImportFrom) and node.module in {
            "pickle",
            "joblib",
            "dill",
            "cloudpickle",
        }:
            # torch.load(weights_only=True) says so with this error when a file holds more than
            # weights. One module reads the vocabulary of VSRN, a pickle, by an unpickler that knows
            # a single class.
            allowed = {"UnpicklingError"} | (
                {"Unpickler"} if path.name == "vsrn_checkpoints.py" else set()
            )
            assert {alias.name for alias in node.names} <= allowed, f"line {node.lineno}"
        elif isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
            assert names.isdisjoint({"pickle", "joblib", "dill", "cloudpickle", "shelve"}), (
                f"line {node.lineno}"
            )
    for call, function in calls(path):
        where = f"line {call.lineno}: {function}"
        assert function not in {"print", "pprint", "eval", "exec"}, where
        assert not (function == "suppress" and "Exception" in map(ast.unparse, call.args)), where
        if function.partition(".")[2] not in {"open", "load", "save"}:
            continue
        arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if function == "Image.open":
            assert arguments.get("formats") == "formats()", where
        if function in {"np.load", "np.save", "numpy.load", "numpy.save"}:
            assert arguments.get("allow_pickle") == "False", where
        if function == "torch.load":
            assert arguments.get("weights_only") == "True", where


@pytest.mark.parametrize(
    "rule",
    [
        imports_go_one_way,
        torch_lives_in_encoders,
        nothing_prints_or_catches_everything_or_unpickles,
    ],
)
def test_every_file_keeps_the_rule(rule: Callable[[Path], None]):
    for path in FILES:
        rule(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "needed", "heavy"),
    [
        (
            "boc.cli",
            {"boc", "click"},
            TORCH | {"numpy", "sklearn", "scipy", "h5py", "PIL", "encoders", "indexing"},
        ),
        (
            "boc.manage.build, boc.search.searcher, boc.cli.contact_sheet, indexing.file",
            {"boc", "indexing", "h5py"},
            TORCH | {"encoders", "sklearn"},
        ),
        (
            "encoders.clip, encoders.tern, encoders.teran, encoders.vsrn, encoders.vsrnpp, "
            "encoders.regions.feature_maps",
            {"encoders"},
            {"torch", "transformers", "huggingface_hub", "nltk"},
        ),
        (
            "encoders.runtime.torch_towers, encoders.runtime.model_folder",
            {"torch"},
            {"transformers"},
        ),
    ],
)
def test_heavy_libraries_are_imported_by_what_needs_them(
    modules: str,
    needed: set[str],
    heavy: set[str],
):
    """Also the region source of a network runs on ONNX Runtime."""
    code = f"import sys, {modules}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert needed <= loaded
    assert loaded.isdisjoint(heavy)


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Nor inside functions: an import that is put off hides a circle, it does not break it."""
    known = {name_of(path) for path in FILES}
    graph = {
        name_of(path): {
            module for module, typing_only in imports(path) if module in known and not typing_only
        }
        for path in FILES
    }
    while free := {
        module for module, needed in graph.items() if not needed & set(graph) - {module}
    }:
        graph = {module: needed for module, needed in graph.items() if module not in free}
    assert not graph, f"in or above a circle: {sorted(graph)}"


@pytest.mark.slow
def test_one_statement_assigns_one_thing():
    """Only a tuple that swaps or rotates its own names may be assigned to another tuple."""
    packed = []
    paths = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    for path in paths:
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            targets = {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
            values = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
            if isinstance(node.targets[0], ast.Tuple) and not targets & values:
                packed.append(f"{path}:{node.lineno}")
    assert not packed, "write one assignment a line"
