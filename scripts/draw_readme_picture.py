"""Draw the picture of the README: the residual blocks of four well-known models, as the audit finds them.

Usage: python scripts/draw_readme_picture.py
"""

from __future__ import annotations

from pathlib import Path

import transformers
from markupsafe import escape

from normplace._shared.html_page import environment
from normplace._shared.output import write_atomic
from normplace.analysis import audit
from normplace.analysis.pages.drawing import BlockDiagram
from normplace.analysis.results import Audit

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MODELS = {
    "BERT": "BertForMaskedLM",
    "Llama": "LlamaForCausalLM",
    "OLMo 2": "Olmo2ForCausalLM",
    "Gemma 2": "Gemma2ForCausalLM",
}
THEMES = {
    "light": {"ink": "#1f2328", "paper": "#ffffff", "norm": "#0969da", "quiet": "#59636e"},
    "dark": {"ink": "#e6edf3", "paper": "#0d1117", "norm": "#4493f8", "quiet": "#9198a1"},
}
CELL_WIDTH, CELL_HEIGHT, HEADING = 540, 182, 48
COLUMNS = {"": 2, "-narrow": 1}
"""Columns by the suffix of the file; the narrow picture is for phones."""


def audits() -> dict[str, Audit]:
    """Audits of small models of each architecture; the blocks are those of the published sizes."""
    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    small |= {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    results: dict[str, Audit] = {}
    for title, name in MODELS.items():
        kind = getattr(transformers, name)
        keys = {} if name.startswith("Bert") else {"num_key_value_heads": 2, "head_dim": 16}
        model = kind(kind.config_class(**small, **keys)).eval()
        results[title] = audit(model, **model.dummy_inputs)
    return results


def draw(results: dict[str, Audit], theme: str, columns: int) -> str:
    """The picture as SVG.

    Args:
        results: Audits by the title of their model.
        theme: Name of the colours.
        columns: Models side by side.
    """
    colours = THEMES[theme]
    cells = [
        _cell(title, result, CELL_WIDTH * (index % columns), CELL_HEIGHT * (index // columns))
        for index, (title, result) in enumerate(results.items())
    ]
    width, height = CELL_WIDTH * columns, CELL_HEIGHT * -(-len(cells) // columns)
    style = (
        f"text{{font:15px system-ui,sans-serif;fill:{colours['ink']}}}"
        f".title{{font-size:20px;font-weight:600}}.equation{{font:17px ui-monospace,monospace;fill:{colours['quiet']}}}"
        f".wire,.box{{stroke:{colours['ink']};fill:none}}.filled{{fill:{colours['paper']}}}"
        f".norm{{fill:{colours['norm']};fill-opacity:.25;stroke:{colours['norm']}}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{style}</style>", *cells, "</svg>\n"])


def _cell(title: str, result: Audit, x: int, y: int) -> str:
    block = next(block for block in result.blocks if block.kind == "attention")
    diagram = BlockDiagram(block)
    macro = environment("normplace.analysis.pages").get_template("block_diagram.html").module.block_diagram
    place = f'<svg x="{x}" y="{y + HEADING - 12}" height="{diagram.height}" '
    drawing = str(macro(diagram)).strip().replace("<svg ", place, 1)
    heading = f'<text class="title" x="{x + 8}" y="{y + 28}">{escape(title)}: {escape(result.placement)}</text>'
    equation = f'<text class="equation" x="{x + 250}" y="{y + 28}">{escape(block.equation)}</text>'
    return "\n".join([heading, equation, drawing])


def main() -> None:
    """Write the files."""
    results = audits()
    for theme in THEMES:
        for suffix, columns in COLUMNS.items():
            write_atomic(IMAGES / f"placements-{theme}{suffix}.svg", draw(results, theme, columns))


if __name__ == "__main__":
    main()
