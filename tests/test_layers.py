"""Each layer imports only lower layers, no module touches private names of another, and importing is cheap."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "normplace"
# From the foundation up; a layer may import itself and any before it.
LAYERS = [
    {"_version", "errors", "_startup", "_shared"},
    {"ops"},
    {"norms"},
    {"placement"},
    {"residual"},
    {"stack"},
    {"ntk"},
    {"models"},
    {"pyg"},
    {"analysis"},
    {"edit"},
    {"convert"},
    {"lab.tasks"},
    {"lab.train"},
    {"lab.trials"},
    {"lab.report"},
    {"lab.studies"},
    {"lab.compare"},
    {"lab.extrapolate"},
    {"lab.ogb"},
    {"lab.bench"},
    {"cli"},
    {"__main__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}


WINGS = {"lab"}
"""Packages whose subpackages are separate layers."""


def part_of(names: Sequence[str]) -> str:
    """Return the layer that a dotted name below the package belongs to."""
    return ".".join(names[:2] if names[0] in WINGS else names[:1])


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the layers that a file imports, also inside functions."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {part_of(name.split(".")[1:]) for name in names if name.startswith("normplace.")}
    return parts


def modules():
    """Yield every module of the package with its layer."""
    for path in sorted(SOURCE.rglob("*.py")):
        names = path.relative_to(SOURCE).with_suffix("").parts
        if names[-1] != "__init__" or part_of(names) in RANK:
            yield path, part_of(names)


def test_every_part_has_a_layer():
    assert {part for _, part in modules()} == RANK.keys()


def test_layers_are_one_way():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {used}"
        for path, part in modules()
        for used in imports(path)
        if used in RANK and RANK[used] > RANK[part]
    ]
    assert wrong == []


def test_the_library_does_not_import_the_lab():
    library = [(path, part) for path, part in modules() if not part.startswith(("lab.", "cli", "__main__"))]
    assert len(library) > 100
    assert [str(path) for path, _ in library if any(used.startswith("lab.") for used in imports(path))] == []


def test_importing_normplace_is_cheap():
    code = "import sys; from normplace import *; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "scipy",
        "rich",
        "ray",
        "distributed",
        "dask",
        "vl_convert",
        "torch_geometric",
        "joblib",
        "transformers",
        "numba",
        "sklearn",
    }
    assert heavy & set(loaded) == set()


def test_files_are_short():
    long = {str(path): lines for path, _ in modules() if (lines := len(path.read_text().splitlines())) > 400}
    assert long == {}


PUBLIC_BY_CONVENTION = {
    "_asdict": "documented method of named tuples",
    "_fields": "documented attribute of named tuples",
    "_replace": "documented method of named tuples",
    "_exit": "documented function of os",
    "_getframe": "documented function of sys",
}
TORCH_INTERNALS = {
    "_C": "the active tracing, functorch and dispatch modes have no public accessor",
    "_are_functorch_transforms_active": "see _C",
    "_functorch": "see _C",
    "_get_tracing_state": "see _C",
    "_len_torch_dispatch_stack": "see _C",
    "_current_level": "whether forward-mode differentiation is active has no public accessor",
    "_version": "the counter of in-place changes of a tensor has no public accessor",
    "_base": "the tensor that a tensor is a view of has no public accessor",
    "_cdata": "the identity of a storage has no public accessor",
    "_ops": "the type of an operator is not exported",
    "_schema": "the argument names of an operator have no public accessor",
    "_assert_async": "a check that does not synchronize with the GPU has no public form",
    "_pack_padded_sequence": "the operator behind pack_padded_sequence",
    "_init_fn": "the function that a custom operator was registered with",
    "_calculate_fan_in_and_fan_out": "used by every initializer of torch.nn.init; not exported",
    "_BatchNorm": "common base class of the batch norms; not exported",
    "_InstanceNorm": "common base class of the instance norms; not exported",
    "_DropoutNd": "common base class of the dropout layers; not exported",
    "_orig_mod": "the module that torch.compile wraps",
    "_call_impl": "the frame in which torch calls a module, found by its code object",
    "_compiled_call_impl": "whether a module was compiled in place",
    "_modules": "replaces a submodule under a name that is not an attribute name",
    "_parameters": "reads a parameter without the cost of Module.__getattr__",
    "_buffers": "exchanges a buffer without registering it again",
    "_forward_hooks": "which hooks a module has; torch has no public list",
    "_forward_pre_hooks": "see _forward_hooks",
    "_backward_hooks": "see _forward_hooks",
    "_backward_pre_hooks": "see _forward_hooks",
    "_global_forward_hooks": "see _forward_hooks",
    "_global_forward_pre_hooks": "see _forward_hooks",
    "_global_backward_hooks": "see _forward_hooks",
    "_global_backward_pre_hooks": "see _forward_hooks",
    "_optimizer_step_pre_hooks": "hooks of a copied optimizer are removed; torch has no public list",
    "_optimizer_step_post_hooks": "see _optimizer_step_pre_hooks",
}
OTHER_INTERNALS = {
    "_from_config": "builds a transformers model without weights; its Auto classes do the same",
    "_model_mapping": "which configurations a transformers Auto class knows",
    "_experts_implementation": "how a transformers model computes its experts",
    "_hf_hook": "whether accelerate offloaded a module; it has no public test",
    "_cache": "numba takes no other place for the machine code of one function, nor ignores a full disk",
    "_processes": "the worker processes of concurrent.futures, to end them when one was killed",
}
EXTERNAL = PUBLIC_BY_CONVENTION | TORCH_INTERNALS | OTHER_INTERNALS
PRIVATE_MODULES = {"_shared", "_startup", "_version"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__")


def members(class_node: ast.ClassDef) -> set[str]:
    """The names that a class defines: methods, class attributes and attributes assigned to self."""
    names = set()
    for node in ast.walk(class_node):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def is_own(owner: ast.expr, classes: set[str]) -> bool:
    """Whether an expression is self, cls, super(), type(self) or a class of the same file."""
    match owner:
        case ast.Name(id=name):
            return name in {"self", "cls", *classes}
        case ast.Call(func=ast.Name(id="super" | "type")):
            return True
    return False


@functools.cache
def foreign_private_names(path: Path) -> set[str]:
    """The underscore attributes and names that a file takes from other classes and modules."""
    tree = ast.parse(path.read_text())
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names: set[str] = set()

    def visit(node: ast.AST, own: set[str]) -> None:
        match node:
            case ast.ClassDef():
                own = own | members(node)
            case ast.Attribute(value=owner, attr=name) if not is_own(owner, classes):
                names.update({name} - own)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[owner, ast.Constant(name), *_]):
                names.update(set() if is_own(owner, classes) else {name} - own)
            case ast.ImportFrom(module=module, names=aliases) if module and module.startswith("normplace"):
                names.update({alias.name for alias in aliases} - PRIVATE_MODULES)
        for child in ast.iter_child_nodes(node):
            visit(child, own)

    visit(tree, set())
    return {name for name in names if is_private(name)}


def test_no_module_touches_a_foreign_underscore_attribute():
    offenders = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in foreign_private_names(path) - EXTERNAL.keys()
    }
    assert offenders == set()


def test_every_allowed_private_name_is_used():
    used = {name for path in SOURCE.rglob("*.py") for name in foreign_private_names(path)}
    assert EXTERNAL.keys() - used == set()


def test_foreign_underscore_attributes_are_detected(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text("""
from normplace.stack import _plan
class Own:
    def __init__(self, other): self._kept = other._kept, super()._base, type(self)._shared, other._foreign
    def same(self): return Own._made, getattr(self, "_lazy"), getattr(self.other, "_hidden")
def outside(own): return own._kept, own.__dict__
""")
    assert foreign_private_names(path) == {"_plan", "_foreign", "_hidden", "_kept"}


def test_scripts_import_names_that_exist():
    root = SOURCE.parents[1]
    for path in [*(root / "scripts").rglob("*.py"), *(root / "benchmarks").rglob("*.py")]:
        folders = (path.parent, root / "scripts", SOURCE.parent, root)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            stems = [folder.joinpath(*node.module.split(".")) for folder in folders]
            files = [
                file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()
            ]
            for name in [alias.name for alias in node.names] if files else []:
                is_module = any(files[0].parent.joinpath(name + end).exists() for end in ("", ".py"))
                assert is_module or re.search(rf"\b{name}\b", files[0].read_text()), (
                    f"{path}: {node.module} has no {name}"
                )
