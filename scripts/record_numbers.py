"""Record the numbers that a refactoring must not change, and compare two records.

    python scripts/record_numbers.py record before.json     # on the old code
    python scripts/record_numbers.py record after.json      # on the new code
    python scripts/record_numbers.py compare before.json after.json --parts ops models

A record holds a SHA-256 of every output and gradient of the ops (the Triton kernels through Triton's interpreter), of
the models in every placement and of moved models, and the audits, signals, survival and certificates of test models.
Trial results are compared from their files: ``normplace study NAME --scale smoke`` on both sides, then
``compare-trials OLD_FOLDER NEW_FOLDER``, which ignores what depends on the machine and the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import normplace as npl

sys.path.insert(0, str(Path(__file__).parents[1]))
Entries = Iterator[tuple[str, Any]]
NOT_COMPARED = {"seconds", "finished", "versions", "hardware", "crc32"}
RENAMED_STUDIES = {"peri-ln": "periln"}


def digest(*tensors: Tensor | None) -> str:
    """A short hash of the bytes, shapes and dtypes of some tensors."""
    made = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            made.update(b"none")
            continue
        made.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        made.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]


def with_gradients(model: nn.Module, output: Tensor, renamed: dict[str, str] | None = None) -> str:
    """A hash of an output and of the gradients of every parameter, in the order of their names.

    Args:
        model: The model.
        output: Its output.
        renamed: Present prefixes of names, with the earlier ones that give the order.
    """

    def earlier(name: str) -> str:
        prefix = next((prefix for prefix in renamed or {} if name.startswith(prefix)), "")
        return (renamed or {}).get(prefix, "") + name.removeprefix(prefix)

    model.zero_grad()
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    (output * weights).sum().backward()
    return digest(
        output,
        *(parameter.grad for _, parameter in sorted(model.named_parameters(), key=lambda pair: earlier(pair[0]))),
    )


def ops(backends: dict[str, tuple[str, ...]]) -> Entries:
    """Outputs and gradients of the three families of ops by the named backends."""
    from tests.ops.aggregate.cases import EDGES, Inputs, graph
    from tests.ops.norm_add_norm.boundary import variants
    from tests.ops.relation.cases import Case

    small = {"edge_index": graph(7, 7, 34), "num_src": 7, "num_dst": 7, "channels": 3}
    for backend in backends["aggregate"]:
        for kind, edge in ((kind, edge) for kind in ("softmax", "power") for edge in EDGES):
            for dtype in (torch.float32, torch.float64):
                if backend == "factorised" and edge != "none":
                    continue
                found = Inputs(kind, 1.5, edge, dtype=dtype, **small).results(backend)
                yield f"aggregate {kind} {edge} {dtype} {backend}", digest(*found.values())
    for backend in backends["norm_add_norm"]:
        for case in variants():
            name = f"norm_add_norm {backend} {case}"
            yield name, digest(*case.results(backend).values())
    for backend in backends["relation"]:
        for post_norm, causal, masked in ((False, True, False), (True, False, True), (True, True, True)):
            options = {"post_norm": post_norm, "causal": causal, "masked": masked, "heads": 2}
            for op, norm in (("scan", "separate"), ("scan", "none"), ("pairwise", "joint"), ("pairwise", "separate")):
                found = Case((1, 7, 6), norm, **options).results(op, backend)
                yield f"relation {op} {norm} {options} {backend}", digest(*found.values())


def interpreted() -> Entries:
    """The same by the Triton kernels, which need a process with TRITON_INTERPRET=1."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, __file__, "triton"]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    yield from json.loads(made.splitlines()[-1]).items()


def models() -> Entries:
    """Outputs and gradients of the networks in every placement."""
    from normplace.models import MLP, CausalRN, GENConv, GraphStack, Transformer
    from normplace.models.transformer import TransformerConfig
    from normplace.placement.presets import PRESETS

    ids, edges = torch.arange(24).view(2, 12) % 11, torch.tensor([[0, 1, 2, 3, 4, 4, 2], [1, 2, 3, 4, 0, 1, 0]])
    first = next(iter(dataclasses.fields(TransformerConfig))).name  # the number of tokens, whatever it is called
    for name in PRESETS:
        for norm in ("rms", "layer"):
            torch.manual_seed(0)
            try:
                net = Transformer(
                    TransformerConfig(**{first: 11, "dim": 16, "depth": 3, "placement": name, "norm": norm})
                )
            except npl.UsageError as error:
                yield f"Transformer {name} {norm}", f"refused ({len(str(error)) > 0})"
                continue
            yield f"Transformer {name} {norm}", with_gradients(net, net(ids))
        torch.manual_seed(0)
        graph = npl.Placement.named(name)
        for kind, build, inputs in (
            ("MLP", lambda graph=graph: MLP((5, 8, 8, 8, 2), placement=graph), (torch.linspace(-1, 1, 20).view(4, 5),)),
            (
                "GraphStack",
                lambda graph=graph: GraphStack(
                    lambda a, b: GENConv(a, b, norm="layer"), in_dim=4, dim=8, out_dim=2, depth=3, placement=graph
                ),
                (torch.linspace(-1, 1, 20).view(5, 4), edges),
            ),
        ):
            try:
                net = build()
            except npl.UsageError as error:
                yield f"{kind} {name}", f"refused ({len(str(error)) > 0})"
                continue
            yield f"{kind} {name}", with_gradients(net, net(*inputs))
    for name in ("pre", "post", "peri"):
        torch.manual_seed(0)
        net = CausalRN(11, dim=8, depth=2, context=16, placement=name)
        yield f"CausalRN {name}", with_gradients(net, net(ids), {"layers.": "blocks."})


def kernels_of_networks() -> Entries:
    """Tangent kernels and certificates."""
    from normplace.models import MLP

    x = torch.linspace(-1, 1, 15).view(5, 3)
    for placement in ("plain", "pre", "post", "peri", "rezero"):
        torch.manual_seed(0)
        net = MLP((3, 16, 16, 16, 2), placement=placement)
        yield f"empirical kernel {placement}", digest(npl.ntk.empirical(net, x))
        yield f"certificate {placement}", str(npl.ntk.certificate(net, x))


def audits() -> Entries:
    """The audits of every architecture of the tests and of random networks."""
    from tests.analysis.architectures.every import ARCHITECTURES
    from tests.analysis.random_attention import network as attention
    from tests.analysis.random_networks import network as residual

    for number, case in enumerate(ARCHITECTURES):
        yield f"audit {case.name} {number}", npl.audit(case.build(), **case.inputs).to_dict()
    for seed in range(40):
        model, inputs, _ = attention(seed)
        yield f"audit attention {seed}", npl.audit(model, *inputs).to_dict()
        model, x, _ = residual(seed)
        yield f"audit residual {seed}", npl.audit(model, x).to_dict()


def moves() -> Entries:
    """Outputs and gradients of moved models, and what signals and survival measure on them."""
    from tests.edit.families import FAMILIES, PLACEMENTS, build

    for name in FAMILIES:
        for to in PLACEMENTS:
            family = build(name)
            torch.manual_seed(0)
            moved = npl.move(family.model, *family.inputs, to=to)
            output = family.output(moved(*family.inputs))
            trainable = name != "written"  # which adds in place to what its norm needs for a gradient
            yield f"move {name} {to}", with_gradients(moved, output) if trainable else digest(output)
            yield f"changes {name} {to}", str(npl.changes(moved))
        family = build(name)
        if name not in ("written", "bert", "vit"):
            measured = npl.signals(
                family.model, family.inputs, lambda y, family=family: family.output(y).square().mean()
            )
            yield f"signals {name}", str(measured)
        yield f"survival {name}", str(npl.survival(family.model, *family.inputs))


CPU = {
    "aggregate": ("reference", "factorised", "auto"),
    "norm_add_norm": ("reference", "composed"),
    "relation": ("reference",),
}
TRITON = dict.fromkeys(CPU, ("triton",))
PARTS = {
    "ops": lambda: ops(CPU),
    "triton": interpreted,
    "models": models,
    "ntk": kernels_of_networks,
    "audits": audits,
    "moves": moves,
}


def record(path: Path, parts: Sequence[str]) -> None:
    """Write the numbers of this code to a file."""
    torch.set_num_threads(1)
    entries: dict[str, dict[str, Any]] = {}
    for name in parts:
        entries[name] = dict(PARTS[name]())
        print(f"{name}: {len(entries[name])} entries", flush=True)
    path.write_text(json.dumps(entries, indent=1, default=str))


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A value with the keys of its dictionaries renamed; a renamed key replaces one that has the new name already."""
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda entry: entry[0] in names)
        return {names.get(key, key): renamed(item, names) for key, item in ordered}
    return [renamed(item, names) for item in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, where: str) -> Iterator[str]:
    """Every place where two values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            if key not in old or key not in new:
                yield f"{where}/{key}: only in the {'old' if key in old else 'new'} record"
            else:
                yield from differences(old[key], new[key], f"{where}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from differences(first, second, f"{where}/{index}")
    elif old != new:
        yield f"{where}: {str(old)[:100]!r} became {str(new)[:100]!r}"


def trials(folder: Path) -> dict[str, Any]:
    """The trials of a result file, or of a folder of them, without what depends on the machine and the time."""
    made = {}
    files = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder]
    for file in files:
        for line in file.read_text().splitlines():
            record = {key: value for key, value in json.loads(line).items() if key not in NOT_COMPARED}
            record["study"] = RENAMED_STUDIES.get(record["study"], record["study"])
            identity = [record.get(key) for key in ("study", "part", "scale", "config", "seed")]
            made[json.dumps(identity, sort_keys=True)] = record
    return made


def main() -> int:
    """Run what the arguments ask for; 1 if two records differ."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare", "compare-trials", "triton"])
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--renamed", nargs="+", default=[], metavar="OLD=NEW", help="keys of the old record to rename")
    options = parser.parse_args()
    if options.action == "triton":
        print(json.dumps(dict(ops(TRITON))))
        return 0
    if options.action == "record":
        record(options.paths[0], options.parts)
        return 0
    read = trials if options.action == "compare-trials" else lambda path: json.loads(path.read_text())
    old, new = (read(path) for path in options.paths)
    if options.action == "compare":
        old, new = ({part: entries[part] for part in options.parts} for entries in (old, new))
    old = renamed(old, dict(pair.split("=") for pair in options.renamed))
    different = list(differences(old, new, ""))
    print(*different[:40], sep="\n")
    counts = [
        len(entries) if options.action == "compare-trials" else sum(map(len, entries.values()))
        for entries in (old, new)
    ]
    print(f"{counts[0]} old entries, {counts[1]} new entries, {len(different)} differences")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
