"""Write docs/howto/gallery.md: audits of well-known models, with a diagram of each kind of block.

python scripts/write_gallery.py
"""

from __future__ import annotations

import html
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import torch
from torch import nn

from normplace._shared.html_page import environment
from normplace.analysis import Audit, ResidualBlock, audit
from normplace.analysis.loading.models import from_config
from normplace.analysis.pages.drawing import BlockDiagram

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "gallery.md"
# The defaults of each configuration class describe the published model it is listed with, as transformers documents.
CONFIGURATIONS = {
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel"),
    "BERT base": ("BertConfig", "BertForMaskedLM"),
    "T5 small": ("T5Config", "T5ForConditionalGeneration"),
    "Llama 7B": ("LlamaConfig", "LlamaForCausalLM"),
    "Gemma 2 2B": ("Gemma2Config", "Gemma2ForCausalLM"),
    "OLMo 2 7B": ("Olmo2Config", "Olmo2ForCausalLM"),
    "GPT-NeoX 20B": ("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "Mixtral 8x7B": ("MixtralConfig", "MixtralForCausalLM"),
    "DeepSeek-V3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "ViT base": ("ViTConfig", "ViTForImageClassification"),
    "Swin v2 tiny": ("Swinv2Config", "Swinv2ForImageClassification"),
}
DIM = 64


class GraphNetwork(nn.Module):
    """Graph layers in sequence, as the examples of PyTorch Geometric combine them.

    Args:
        layer: Builds one layer, called as ``layer(x, edge_index)``.
        depth: Number of layers.
        norm: Norm before the head.
    """

    def __init__(self, layer: Callable[[], nn.Module], depth: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, DIM), nn.Linear(DIM, 1)
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.norm = nn.Identity() if norm is None else norm

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Predict one number per node."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.head(self.norm(x))


def graph_networks() -> dict[str, tuple[str, nn.Module]]:
    """Graph networks by title, with a description."""
    from torch_geometric.nn import GAT, GIN, DeepGCNLayer, GATConv, GENConv, GINConv, GPSConv

    from normplace.models import GraphStack

    def res_plus() -> nn.Module:
        return DeepGCNLayer(GENConv(DIM, DIM), nn.LayerNorm(DIM), nn.ReLU(), block="res+")

    def gps() -> nn.Module:
        return GPSConv(DIM, GINConv(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))), heads=4)

    def attention(a: int, b: int) -> nn.Module:
        return GATConv(a, b // 4, heads=4)

    return {
        "DeeperGCN": (
            "`DeepGCNLayer` of PyTorch Geometric with `block='res+'` around `GENConv`",
            GraphNetwork(res_plus, 7, nn.LayerNorm(DIM)),
        ),
        "GraphGPS": ("`GPSConv` of PyTorch Geometric around `GINConv`", GraphNetwork(gps, 5)),
        "GAT with LayerNorm": (
            "`GAT` of PyTorch Geometric; its LayerNorm has statistics over the whole graph by default",
            GAT(16, DIM, 3, 1, norm="LayerNorm"),
        ),
        "GIN with BatchNorm": ("`GIN` of PyTorch Geometric", GIN(16, DIM, 4, 1, norm="BatchNorm")),
        "Residual GAT": (
            "`GraphStack` of normplace with `placement='post'` around `GATConv`, the backbone of PostDeg",
            GraphStack(attention, 16, DIM, 1, depth=3, placement="post"),
        ),
    }


def audits(only: Container[str] | None = None) -> Iterator[tuple[str, str, Audit]]:
    """Title, description and audit of every model of the gallery, or of some."""
    import transformers

    for title, (config, model) in CONFIGURATIONS.items():
        if only is not None and title not in only:
            continue
        settings = json.loads(getattr(transformers, config)(architectures=[model]).to_json_string())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(settings))
            built, inputs, kwargs = from_config(file)
        yield title, f"`{model}` of transformers, {_parameters(built)}", audit(built, *inputs, **kwargs)
    torch.manual_seed(0)
    x, edges = torch.randn(50, 16), torch.randint(50, (2, 200))
    for title, (description, network) in graph_networks().items():
        if only is None or title in only:
            yield title, f"{description}, {_parameters(network)}", audit(network, x, edges)


def _parameters(model: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def block_svg(block: ResidualBlock) -> str:
    """The diagram of a block, on one line."""
    template = environment("normplace.analysis.pages").from_string(
        '{% from "block_diagram.html" import block_diagram %}{{ block_diagram(diagram) }}'
    )
    return re.sub(r"\n\s*", " ", template.render(diagram=BlockDiagram(block)).strip())


def diagrams(result: Audit) -> Iterator[str]:
    """A figure for each distinct block, on one line each."""
    first: dict[tuple[str, str], ResidualBlock] = {}
    for block in result.blocks:
        first.setdefault((block.equation, block.kind), block)
    for (equation, kind), block in first.items():
        count = sum((other.equation, other.kind) == (equation, kind) for other in result.blocks)
        caption = f"{count} × {kind}: <code>{html.escape(equation)}</code>"
        yield f"<figure>{block_svg(block)}<figcaption>{caption}</figcaption></figure>"


def section(title: str, description: str, result: Audit) -> str:
    """The section of one model."""
    figures = "".join(f"{figure}\n" for figure in diagrams(result))
    drawing = f'<div class="block-diagrams">\n{figures}</div>\n\n' if figures else ""
    text = textwrap.indent(f"```text\n{result}\n```\n", "    ")
    return f'## {title}\n\n{description}.\n\n{drawing}??? abstract "The audit"\n\n{text}'


def page() -> str:
    """The page as text."""
    import transformers

    entries = list(audits())
    introduction = (
        "Where do well-known models have their norms? These are audits of Transformers from the default "
        f"configurations of transformers {transformers.__version__}, without weights, and of graph networks. In the "
        "diagrams, norms are blue; names at the lower edge of a branch are norms inside it. "
        "`scripts/write_gallery.py` writes this page. [Audit your own model](../tutorials/audit.md)."
    )
    rows = [
        f"| [{title}](#{_anchor(title)}) | {_placement(result)} | {_equations(result)} | {len(result.sites)} |"
        for title, _, result in entries
    ]
    return "\n".join(
        [
            "# Audited models\n",
            "\n".join(textwrap.wrap(introduction, 118)) + "\n",
            "| model | placement | blocks | norms |",
            "|---|---|---|---:|",
            *rows,
            "",
            *(section(*entry) for entry in entries),
        ]
    )


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _placement(result: Audit) -> str:
    return (f"`{result.placement}`" if result.placement else "unnamed") if result.blocks else "no residual blocks"


def _equations(result: Audit) -> str:
    return ", ".join(f"`{equation}`" for equation in result.equations) or "-"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
