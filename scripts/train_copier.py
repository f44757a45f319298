"""Train a small CausalRN to copy strings of 200 characters, check it by decoding, and write it to one file.

Usage: python scripts/train_copier.py [--length 200] [--dim 64] [--depth 3] [--out docs/howto/copier.safetensors]

It takes seconds on a GPU, and hours on two cores. The file is written only if every one of 16 new strings
is repeated exactly by greedy decoding from the weights as they are in the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from normplace._shared.device import pick_device
from normplace.lab.tasks.sequences import FixedCopy
from normplace.lab.train.sequence import SequenceTraining, fit_sequence, predict_tokens
from normplace.models import CausalRN
from normplace.models.sequence import count_parameters, load_sequence, save_sequence

CHECKED = 16


def main() -> int:
    """Train, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("docs/howto/copier.safetensors"))
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    task = FixedCopy(chosen.length)
    weights = torch.Generator().manual_seed(0)
    model = CausalRN(task.vocab_size, chosen.dim, chosen.depth, context=task.context, generator=weights).to(device)
    generator = torch.Generator(device).manual_seed(0)
    begun = time.perf_counter()

    def watch(step: int) -> bool:
        batch = task.draw(CHECKED, generator)
        scores = task.score(predict_tokens(model, batch.inputs), batch)
        character, string = (float(value.mean()) for value in (scores.character, scores.string))
        print(f"step {step}, {time.perf_counter() - begun:.0f} s: characters {character:.3f}, strings {string:.3f}")
        return string == 1

    print(f"{count_parameters(model):,} parameters on {device}")
    plan = SequenceTraining(chosen.steps, chosen.batch_size, chosen.learning_rate, every=chosen.every)
    fit_sequence(model, task, plan, generator, watch)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "copier.safetensors"
        save_sequence(model, kept, dtype=torch.float16)
        batch = task.draw(CHECKED, generator)
        copied = load_sequence(kept, device).generate(task.prompts(batch), chosen.length + 1, stop=task.EOS)
        right = task.score(copied[:, -chosen.length - 1 :], batch).string
        print(f"{int(right.sum())} of {CHECKED} strings of {chosen.length} characters repeated exactly")
        if not right.all():
            return 1
        chosen.out.write_bytes(kept.read_bytes())
    print(f"wrote {chosen.out}, {chosen.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
