"""Write a trained network as a folder that Hugging Face's Auto classes load."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from normplace._shared.modules import count_parameters
from normplace._shared.output import cannot_write, check_unused
from normplace.analysis.loading.models import quiet
from normplace.errors import UsageError, first_line
from normplace.lab.train.run_folder import Run
from normplace.lab.train.tokenizer import save_tokenizer
from normplace.models.transformer import Transformer, to_huggingface

PROBE_TOKENS = 64
REMEDY = "choose another --hf"
TOLERANCE = 1e-4
"""Largest difference of the logits, relative to the largest logit: a few roundings in float32 per layer."""


def export_huggingface(run: Run, folder: Path, family: str | None = None) -> dict[str, Any]:
    """Write a network and its tokenizer, load them again, and compare the logits.

    Args:
        run: The network and its tokenizer.
        folder: Output folder; it must not exist yet, or be empty.
        family: Hugging Face family; None for the first that has such networks.

    Returns:
        The class of the model, its parameters, the folder, and the largest difference of the logits.

    Raises:
        UsageError: If no family has such networks, the folder is in use or cannot be written, or transformers is not
            installed.
    """
    check_unused(folder, REMEDY)
    model = run.model.float().cpu()
    context = run.context
    fields = {} if context is None or model.config.positions.kind == "learned" else {"max_position_embeddings": context}
    converted = to_huggingface(model, family, **fields)
    with _new_folder(folder) as draft, quiet():
        converted.save_pretrained(draft)
        save_tokenizer(run.tokenizer, draft)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (draft / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
        difference = _difference(model, draft, context or PROBE_TOKENS)
    count = count_parameters(model)
    name = type(converted).__name__
    return {"model": name, "parameters": count, "folder": str(folder.resolve()), "difference": difference}


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder next to ``folder`` that is renamed to it once the block has finished.

    Raises:
        UsageError: If it cannot be written.
    """
    target = Path(os.path.abspath(folder))  # noqa: PTH100 (resolve fails for loops of links)
    draft = target.with_name(f".{target.name}-{secrets.token_hex(4)}.tmp")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.replace(target)
    except OSError as error:
        raise cannot_write(folder, error, REMEDY) from error
    except SafetensorError as error:  # also that of the operating system
        raise UsageError(f"cannot write {folder}: {first_line(error)}; {REMEDY}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@torch.no_grad()
def _difference(model: Transformer, folder: Path, length: int) -> float:
    """The largest difference of the logits of the model in a folder.

    Raises:
        UsageError: If it is more than rounding.
    """
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, min(length, PROBE_TOKENS)), generator=generator)
    expected, logits = model(ids), AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
    difference = float((logits - expected).abs().max())
    if not difference <= TOLERANCE * float(expected.abs().max()):
        raise UsageError(f"the logits of the exported model differ by {difference:.2g}: please report this.")
    return difference
