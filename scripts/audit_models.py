"""Write docs/howto/gallery.md: audits of well-known models, built from their configurations on the meta device.

python scripts/audit_models.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from normplace.analysis import audit
from normplace.analysis.loading.models import from_config

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "gallery.md"
# Each configuration class's defaults are the published model named beside it, by transformers' own documentation.
MODELS = {
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel"),
    "BERT base": ("BertConfig", "BertForMaskedLM"),
    "Llama 7B": ("LlamaConfig", "LlamaForCausalLM"),
    "Gemma 2 2B": ("Gemma2Config", "Gemma2ForCausalLM"),
    "OLMo 2 7B": ("Olmo2Config", "Olmo2ForCausalLM"),
    "GPT-NeoX 20B": ("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "Mixtral 8x7B": ("MixtralConfig", "MixtralForCausalLM"),
    "DeepSeek-V3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "ViT base": ("ViTConfig", "ViTForImageClassification"),
}


def page() -> str:
    """The page as text."""
    import transformers

    parts = [
        "# Audited models\n\nAudits of well-known models, from the default configurations "
        f"of transformers {transformers.__version__}, without weights; written by `scripts/audit_models.py`.\n"
    ]
    for title, (config, model) in MODELS.items():
        held = json.loads(getattr(transformers, config)(architectures=[model]).to_json_string())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(held))
            built, inputs, kwargs = from_config(file)
        count = sum(parameter.numel() for parameter in built.parameters())
        parts.append(f"\n## {title}\n\n{count:,} parameters.\n\n```text\n{audit(built, *inputs, **kwargs)}\n```\n")
    return "".join(parts)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
