"""``normplace generate``."""

from __future__ import annotations

import sys
import time
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from normplace.cli.options import Run
from normplace.errors import UsageError, expect_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from normplace.lab.train.run_folder import Run as TrainedRun


def generate(
    run: Run,
    /,
    *,
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True, show_default=lambda prompt: "a line break")] = "\n",
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str = "auto",
    json: bool = False,
) -> int:
    """Continue a text with the model of a training run.

    The text is printed as it is generated. The model reads at most as many tokens as in training: the last ones of a
    longer prompt, and the newest half whenever there are more.

    Args:
        run: The --out folder of a finished 'normplace train', or the folder of a saved Transformer.
        prompt: Text to continue; - to read it from standard input.
        length: Number of tokens to generate.
        temperature: 0 for the most likely token; higher for more uniform sampling.
        top_k: Sample among the k most likely tokens.
        top_p: Sample among the most likely tokens whose probabilities sum to this.
        seed: Random seed of the sampling.
        device: auto, cpu or cuda.
        json: Print JSON at the end.
    """
    from normplace.lab.train.run_folder import open_run

    expect_range("length", length, least=1)
    trained = open_run(run)
    text = sys.stdin.read() if prompt == "-" else prompt
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    start, count, generated = time.perf_counter(), 0, ""
    pieces = _pieces(trained, text, length, seed, device, options)
    if not json:
        print(text, end="", flush=True)
    for piece in pieces:
        count, generated = count + 1, generated + piece
        if not json:
            print(piece, end="", flush=True)
    if not json:
        print()
        return 0
    seconds = time.perf_counter() - start
    speed = {"seconds": seconds, "tokens_per_second": (count - 1) / seconds}
    print(dumps({"prompt": text, "text": generated, "tokens": count - 1, "seed": seed, **options, **speed}))
    return 0


def _pieces(
    trained: TrainedRun, text: str, length: int, seed: int, device: str, options: dict[str, Any]
) -> Iterator[str]:
    """The text that each token completes, and at the end that of a cut character."""
    import torch

    from normplace._shared.device import pick_device
    from normplace.lab.train.config import SEED_LIMIT
    from normplace.lab.train.tokenizer import StreamDecoder
    from normplace.models.transformer.generate import stream

    ids = trained.tokenizer.encode(text.encode("utf-8", "surrogateescape"))
    if not len(ids):
        raise UsageError("the prompt is empty: give at least one character.")
    if not 0 <= seed < SEED_LIMIT:
        raise UsageError(f"seed must be at least 0 and below {SEED_LIMIT}, got {seed}.")
    context = trained.context
    if context is not None and len(ids) > context:
        print(
            f"The prompt has {len(ids):,} tokens; the model reads the last {context:,}, as in training.",
            file=sys.stderr,
        )
    chosen = pick_device(device)
    generator = torch.Generator(chosen).manual_seed(seed)
    prompt = torch.tensor(ids.astype("int64"), device=chosen)[None]
    decoder = StreamDecoder(trained.tokenizer)
    tokens = stream(trained.model.to(chosen), prompt, length, generator=generator, window=context, **options)

    def pieces() -> Iterator[str]:
        for token in tokens:
            yield decoder.add(int(token))
        yield decoder.finish()

    return pieces()
