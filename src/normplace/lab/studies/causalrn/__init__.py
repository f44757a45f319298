"""An All-MLP Sequence Modeling Architecture That Excels at Copying (arXiv 2406.16168)."""

from normplace.lab.studies.causalrn import (
    ablation,
    copying_fixed,
    copying_variable,
    expansion,
    generalization,
    head,
    images,
    language,
    lookup,
    opponents,
    pretraining,
    published_ablation,
    published_copying,
    recall,
    scaling,
    state,
)
from normplace.lab.studies.causalrn.claims import CLAIMS
from normplace.lab.studies.causalrn.figures import figures
from normplace.lab.studies.causalrn.headline import HEADLINE
from normplace.lab.trials.study import Study

STUDY = Study(
    name="causalrn",
    title="A pair norm turns a relation network into a memory that copies",
    paper="Cui et al., An All-MLP Sequence Modeling Architecture That Excels at Copying, arXiv 2406.16168",
    summary=(
        "Copying-fixed: CausalRN in its pairwise and scan forms, a Transformer and linear attention are trained to "
        "copy strings of one length, with the published task and initial weights. Networks are smaller and trained "
        "for fewer steps than published. All comparisons are at equal parameter counts; the Transformer is also "
        "compared at the published size, where it has up to four times as many parameters. Training ends when 128 "
        "new strings are copied without an error. Ablation removes the pair norm, the exponential or the norm "
        "after the sum. State trains the scan with its running sum in float32 and in bfloat16.\n\n"
        "Copying-variable: the copying task of Jelassi et al. 2024 (arXiv 2402.01032), packed, tested far beyond the "
        "trained lengths, without positions or with positions of unlimited length.\n\n"
        "Head: one layer built by hand, without training, retrieves one value among many. Scaling: time and memory by "
        "sequence length. Recall: the task of Zoology (arXiv 2312.04927). Lookup: the characters after an n-gram of a "
        "string, asked for before it or after it (arXiv 2402.01032). Language: bits per byte of Python's standard "
        "library. Pretraining: the same on 100 million tokens of source text, bytes and a vocabulary of 4,096 tokens, "
        "with a learning rate for each network. Images: pixels of handwritten digits and of CIFAR-10 as a sequence.\n\n"
        "Published-copying and published-ablation train networks of the published size with the published budget, the "
        "ablation also for three times as long. Opponents are Transformers with five kinds of position and networks "
        "with a state of fixed size. Generalization tests strings longer than those in training, by kind of position. "
        "Expansion varies the width of the relation, the heads and the depth. These parts need a GPU: "
        "``scripts/run_copying.py`` runs their trials in the order of their importance.\n\n"
        "The body of the paper was not available to us. All its settings here are those of its published code, and "
        "none of its figures is quoted."
    ),
    reference="normplace.lab.studies.causalrn:STUDY",
    parts=(
        copying_fixed.PART,
        copying_variable.PART,
        ablation.PART,
        state.PART,
        recall.PART,
        lookup.PART,
        language.PART,
        pretraining.PART,
        images.PART,
        head.PART,
        scaling.PART,
        published_copying.PART,
        published_ablation.PART,
        opponents.PART,
        generalization.PART,
        expansion.PART,
    ),
    claims=CLAIMS,
    figures=figures,
    headline=HEADLINE,
    demo="One of three seeds of the networks that copy 6 and 10 characters, and all retrieval heads built by hand. One "
    "seed shows which networks copy; verdicts on copying need three.",
)
