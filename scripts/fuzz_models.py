"""Damage model files and mistype Hugging Face configurations: one sentence, or the undamaged result; never a traceback.

    nice python scripts/fuzz_models.py --files 300 --configs 200

Model files are those of ``Transformer`` and ``CausalRN``: bits, lengths and blocks of their bytes change, files are
removed, swapped or renamed, and fields of their configurations get other values, with and without fitting hashes. What
still loads must be bit for bit what was saved, except where a field with a fitting hash describes another model of the
same shapes. Configurations get values of other types and sizes in one field at a time and are given to ``normplace
audit --hf``, which must end with code 0 or 1, or with code 2 and one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from normplace.cli import main as command
from normplace.errors import UsageError
from normplace.models import CausalRN
from normplace.models.sequence import load_sequence, save_sequence
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig, load, save
from normplace.models.weights import content_hash, packed, read_sealed, seal

SECONDS = 60
VALUES: list[Any] = [None, True, -1, 0, 3, 2.5, 1e300, "x", "", [], {}, [[1]], {"a": 1}, 10**9, 10**30, "é" * 300]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 31}
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES},
    {"model_type": "gemma2", "head_dim": 8, **SIZES},
    {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES},
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31},
    {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 31},
    {"model_type": "vit", "image_size": 32, "patch_size": 16, **SIZES},
    {"model_type": "mixtral", "num_local_experts": 2, **SIZES},
    {"model_type": "xlnet", "n_layer": 2, "d_model": 16, "n_head": 2, "d_inner": 24, "vocab_size": 31},
]


@contextlib.contextmanager
def limit(seconds: int = SECONDS) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer."""

    def hang(*_: Any) -> None:
        raise TimeoutError(f"no answer in {seconds} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def flip(file: Path, chance: random.Random) -> None:
    """Flip one bit, or fifty."""
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 1, 50])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def resize(file: Path, chance: random.Random) -> None:
    """Cut a file short, append to it, or overwrite a block."""
    content = file.read_bytes()
    begin = chance.randrange(len(content))
    block = content[:begin] + bytes(len(content[begin : begin + 512])) + content[begin + 512 :]
    file.write_bytes(chance.choice([content[:begin], content + chance.randbytes(9), b"", block]))


def relocate(file: Path, chance: random.Random) -> None:
    """Remove a file, rename it, or put a folder or another file there."""
    change = chance.randrange(4)
    content = file.read_bytes()
    file.unlink()
    if change == 1:
        file.with_suffix(".bak").write_bytes(content)
    elif change == 2:
        file.mkdir()
    elif change == 3:
        file.write_bytes(
            packed({"x": torch.ones(3)})[0] if file.suffix == ".safetensors" else b'{"model_type": "llama"}'
        )


def change_field(fields: dict[str, Any], chance: random.Random) -> None:
    """Give one field, or one of a nested mapping, another value, or drop it."""
    holders = [fields, *(value for value in fields.values() if isinstance(value, dict) and value)]
    holder = chance.choice(holders)
    key = chance.choice(list(holder))
    if chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(VALUES)


def edit_transformer(folder: Path, chance: random.Random, sealed: bool) -> None:
    """Change a field of a network's configuration, with a fitting hash or without."""
    file = folder / "config.json"
    content = read_sealed(file) if sealed else json.loads(file.read_text())
    change_field(content["config"] if sealed else content, chance)
    file.write_text(json.dumps(seal(content) if sealed else content))


def edit_sequence(folder: Path, chance: random.Random, sealed: bool) -> None:
    """Change a setting of a sequence model, or a tensor, with a fitting hash or without."""
    file = folder / "model.safetensors"
    with safe_open(str(file), framework="pt") as reader:
        tensors = {name: reader.get_tensor(name).clone() for name in reader.keys()}  # noqa: SIM118 (no mapping)
        metadata = dict(reader.metadata())
    settings = json.loads(metadata["normplace.sequence"])
    change_field(settings, chance)
    metadata["normplace.sequence"] = json.dumps(settings)
    if sealed:
        metadata["normplace.sha256"] = content_hash(tensors, metadata["normplace.sequence"])
    file.write_bytes(packed(tensors, metadata)[0])


Loader = Callable[[Path], torch.nn.Module]


def damage_files(count: int, chance: random.Random, scratch: Path) -> Counter[str]:
    """Damage model files and load them."""
    config = TransformerConfig(31, 16, 2, "peri", attention=AttentionConfig(heads=2))
    network = Transformer(config, generator=torch.Generator().manual_seed(0))
    save(network, scratch / "transformer")
    sequence = CausalRN(11, 8, 2, context=9, generator=torch.Generator().manual_seed(0))
    (scratch / "sequence").mkdir()
    save_sequence(sequence, scratch / "sequence" / "model.safetensors")
    kinds: list[tuple[str, torch.nn.Module, Loader, Callable[..., None]]] = [
        ("transformer", network, load, edit_transformer),
        ("sequence", sequence, lambda folder: load_sequence(folder / "model.safetensors"), edit_sequence),
    ]
    counts: Counter[str] = Counter()
    for case in range(count):
        name, model, loader, edit = kinds[case % 2]
        folder = scratch / "case"
        shutil.copytree(scratch / name, folder)
        file = chance.choice(sorted(folder.iterdir()))
        way = chance.choice(["flip", "flip", "resize", "relocate", "edit", "sealed"])
        if way in ("edit", "sealed"):
            edit(folder, chance, way == "sealed")
        else:
            {"flip": flip, "resize": resize, "relocate": relocate}[way](file, chance)
        result = judge_load(loader, folder, model, sealed=way == "sealed")
        counts[result.partition(":")[0]] += 1
        if result.startswith("WRONG"):
            print(f"file {case}, {name}, {way} of {file.name}: {result}", flush=True)
        shutil.rmtree(folder)
    return counts


def judge_load(loader: Loader, folder: Path, model: torch.nn.Module, sealed: bool) -> str:
    """Load a damaged model; what was wrong, or how it ended."""
    try:
        with limit():
            loaded = loader(folder)
    except UsageError as error:
        return "refused" if "\n" not in str(error) else f"WRONG: several lines: {str(error)[:200]!r}"
    except Exception:
        return f"WRONG: {traceback.format_exc().strip().splitlines()[-1]}"
    expected, found = model.state_dict(), loaded.state_dict()
    if expected.keys() != found.keys() or not all(torch.equal(found[key], expected[key]) for key in expected):
        return "WRONG: other weights"
    if sealed:
        return "loaded, sealed"
    same = getattr(loaded, "config", None) == getattr(model, "config", None) and repr(loaded) == repr(model)
    return "same" if same else "WRONG: another model"


def mistype_configs(count: int, chance: random.Random, scratch: Path) -> Counter[str]:
    """Audit configurations with a value of another type or size in one field."""
    import transformers

    counts: Counter[str] = Counter()
    file = scratch / "config.json"
    for case in range(count):
        chosen = CONFIGS[case % len(CONFIGS)]
        fields = dict(chosen)
        every = transformers.AutoConfig.for_model(chosen["model_type"]).to_dict()
        # Half of the time a field that decides the shape, else any that the class knows.
        key = chance.choice(sorted(chosen) if case // len(CONFIGS) % 2 else sorted(every))
        fields[key] = chance.choice(VALUES)
        file.write_text(json.dumps(fields))
        errors, code = io.StringIO(), None
        try:
            with limit(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                code = command(["audit", "--hf", str(file)])
            lines = len(errors.getvalue().splitlines())
            result = "WRONG" if code not in (0, 1, 2) or (code == 2 and lines != 1) else f"code {code}"
        except (Exception, SystemExit):
            result, lines = "WRONG", 0
            errors.write(traceback.format_exc().strip().splitlines()[-1])
        counts[result] += 1
        if result == "WRONG":
            shown = errors.getvalue()[-300:]
            print(f"config {case}, {chosen['model_type']} {key}={fields[key]!r}: {code}, {shown!r}", flush=True)
    return counts


def main() -> int:
    """Damage, load, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chance, begin, wrong = random.Random(arguments.seed), time.monotonic(), 0
    for what, count, run in (
        ("damaged model files", arguments.files, damage_files),
        ("ill-typed configurations", arguments.configs, mistype_configs),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            counts = run(count, chance, Path(scratch))
        wrong += counts["WRONG"]
        print(f"{count} {what} in {time.monotonic() - begin:.0f} s: {dict(counts)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
