"""``normplace export``."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from normplace.cli.options import Run


def export(
    run: Run,
    /,
    *,
    hf: Annotated[Path, Parameter(name="--hf", metavar="FOLDER")],
    family: str | None = None,
    json: bool = False,
) -> int:
    """Write the model and tokenizer of a training run as a Hugging Face folder.

    AutoModelForCausalLM and AutoTokenizer load the folder. The logits of the loaded model are compared with those of
    the original. If no supported family has the placement, the command stops and names the nearest one.

    Args:
        run: The --out folder of a finished 'normplace train', or the folder of a saved Transformer.
        hf: Output folder; it must not exist yet, or be empty.
        family: Hugging Face family, such as llama; by default the first that has such networks.
        json: Print JSON.
    """
    from normplace.lab.train.export import export_huggingface
    from normplace.lab.train.run_folder import open_run

    written = export_huggingface(open_run(run), hf, family)
    if json:
        print(dumps(written))
    else:
        print(f"{written['model']}, {written['parameters']:,} parameters: {written['folder']}")
        print(f"Its logits differ from those of the run by at most {written['difference']:.2g}.")
    return 0
