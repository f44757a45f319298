"""Write docs/reference/cli.md from the parsers of the command line.

Usage: python scripts/write_cli_reference.py
"""

from __future__ import annotations

import re
from pathlib import Path

from normplace._shared.output import write_atomic
from normplace._shared.text_table import markdown_table
from normplace.cli.app import EPILOGUES, GROUPS, VERBS, build_app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
INTRODUCTION = """# Command line

Every command and option of `normplace`. The option `--help` of a command prints the same text;
`scripts/write_cli_reference.py` writes this page from the parsers.
"""
EXAMPLES = {
    "audit": (
        "normplace audit models.py:build",
        "normplace audit package.models:build --html audit.html",
        "normplace audit google/gemma-2-2b",
        "normplace audit checkpoints/llama --fail-on warning",
    ),
    "move": (
        "normplace move models.py:build --to peri --out moved",
        "normplace move checkpoints/llama --to peri --out moved",
    ),
    "swap": (
        "normplace swap models.py:build --norm rms --out swapped",
        "normplace swap checkpoints/resnet --norm group --groups 16 --out swapped",
    ),
    "insert": ("normplace insert models.py:build --scale degree --power -1 --out scaled",),
    "fold": (
        "normplace fold models.py:build --out folded",
        "normplace fold checkpoints/gpt2 --untie --center --out folded",
    ),
    "compare": (
        "normplace compare pre post peri --text notes.txt",
        "normplace compare as-is degree^-1 --graph influence",
        "normplace compare my_gnn.py:make --edits scales --dry-run",
    ),
    "select": (
        "normplace select graph.csv --method policy corehd --out order.csv --picture curve.svg",
        "normplace select graph.npz --task influence --budget 50 --method policy ris --json",
        "normplace select graph.graphml --task independent-set",
    ),
    "fuse": (
        "normplace fuse models.py:build",
        "normplace fuse google/gemma-2-2b --reach stack --json",
    ),
    "train": (
        "normplace train --placement peri --steps 200",
        "normplace train --config run.toml --signals every=200 --log tensorboard",
        "torchrun --nproc-per-node 8 -m -- normplace train --text books --batch 64",
    ),
    "generate": ('normplace generate runs/train --prompt "import " --length 300 --top-k 40',),
    "export": ("normplace export runs/train --hf exported",),
    "evaluate": (
        "normplace evaluate runs/train",
        "normplace evaluate runs/train --tasks copy lambada_openai",
    ),
    "study": (
        "normplace study postdeg --dry-run",
        "normplace study extrapolation --part toy --out runs",
        "normplace study postdeg --part selection --seeds 10",
        "normplace study my_study.py:STUDY --scale smoke",
    ),
    "demo": ("normplace demo --out runs",),
    "report": ("normplace report runs --out report.html",),
    "verify": (
        "normplace verify",
        "normplace verify --only postdeg periln --verdict not-reproduced",
        "normplace verify runs --text dismantling --json",
    ),
    "rerun": ("normplace rerun", "normplace rerun runs --only postdeg --trials 20 --longest 60"),
    "bench": ("normplace bench aggregate --quick",),
    "new": ("normplace new study my_study",),
    "list": ("normplace list placements", "normplace list postdeg"),
    "doctor": ("normplace doctor",),
}
EXIT_CODES = (
    ("0", "Success."),
    (
        "1",
        "The command ran and reports a problem: findings of an audit, failed trials, a wrong kernel, damaged lines.",
    ),
    ("2", "A usage error; one line on standard error names the mistake and the remedy."),
    ("130", "Interrupted by Ctrl-C; the message states whether the command can resume."),
)
VARIABLES = (
    ("`NO_COLOR`, `FORCE_COLOR`", "Switch colour off or on; by default, only terminals get colour."),
    (
        "`NORMPLACE_OFFLINE=1`, `HF_HUB_OFFLINE=1`",
        "Forbid downloads; the second, those from the Hugging Face Hub only.",
    ),
    (
        "`NORMPLACE_CACHE`",
        "Folder of downloaded files, charts and compiled loops; `normplace` in the user's cache folder by default.",
    ),
    ("`NORMPLACE_DATA`", "Folder with data sets that you downloaded yourself."),
    ("`HF_TOKEN`, `HF_ENDPOINT`", "Token for gated models, and address of another host of the Hub."),
)
COMPLETION = """## Completion in the shell

`normplace --install-completion` installs completion of commands, options and names for bash, zsh, fish or PowerShell,
and adds it to the shell's startup file. Restart the shell afterwards.
"""


def page() -> str:
    """Return the page."""
    tables = [
        f"**{heading}**\n\n"
        + markdown_table(["command", "does"], [(f"[`{name}`](#normplace-{name})", summary(name)) for name in verbs])
        for heading, verbs in GROUPS.items()
    ]
    parts = [
        INTRODUCTION,
        *tables,
        "## Exit codes",
        markdown_table(["code", "meaning"], EXIT_CODES),
        "## Environment variables",
        markdown_table(["variable", "meaning"], VARIABLES),
        COMPLETION,
        *sections(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary(name: str) -> str:
    """Return the first sentence of a verb's help."""
    return (VERBS[name].__doc__ or "").partition("\n")[0].strip()


def sections() -> list[str]:
    """Return the part of the page on each verb."""
    # The parsers of the verbs inherit settings of the whole application, so their text is cut out of its text.
    parts = re.split(r"^## normplace (\S+)$", build_app().generate_docs(usage_name="normplace"), flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [section(name, texts[name]) for name in VERBS]


def section(name: str, text: str) -> str:
    """Return the part of the page on one verb.

    Args:
        name: The verb.
        text: Its usage, description, arguments and options, as cyclopts writes them.
    """
    # cyclopts adds the words of "python -m MODULE" if this runs inside another program.
    text = re.sub(rf"^```console\n(normplace {name})(?: -m \S+)?", r"```text\n\1", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"(?<=\S)\n +(?=\S)", " ", text)  # each entry of a list on one line
    epilogue = EPILOGUES.get(name, lambda: None)()
    examples = [f"    {example}" for example in EXAMPLES.get(name, ())]
    more = [epilogue] if epilogue else []
    more += ["\n".join(["Examples:", "", *examples])] if examples else []
    return "\n\n".join([f"## normplace {name}", text.strip(), *more])


if __name__ == "__main__":
    write_atomic(PAGE, page())
    print(f"The page is at {PAGE}")
