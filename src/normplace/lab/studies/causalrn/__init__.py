"""An All-MLP Sequence Modeling Architecture That Excels at Copying (arXiv 2406.16168)."""

from normplace.lab.studies.causalrn import ablation, fixed, head, language, recall, scaling, state, variable
from normplace.lab.studies.causalrn.claims import CLAIMS
from normplace.lab.studies.causalrn.figures import figures
from normplace.lab.trials.study import Study

STUDY = Study(
    name="causalrn",
    title="A norm of every pair turns a relation network into a memory that copies",
    paper="Cui et al., An All-MLP Sequence Modeling Architecture That Excels at Copying, arXiv 2406.16168",
    summary=(
        "Copying: CausalRN in its pairwise and scan forms, a Transformer and linear attention learn to repeat strings "
        "of one length, by the published task and initial weights. Networks are smaller and trained for fewer steps "
        "than published; every comparison is made at equal numbers of parameters, and with the Transformer also at the "
        "published ones, where it has up to four times as many. Training ends once 128 new strings are copied without "
        "an error. The ablation takes away the norm of a pair, the exponential or the norm after the sum; state "
        "trains the scan with its running sum in float32 and in bfloat16.\n\n"
        "Varying lengths: the copying task of Jelassi et al. 2024 (arXiv 2402.01032), packed, tested far beyond the "
        "trained lengths, without positions or with those that go on for ever.\n\n"
        "Head: one layer set by hand, not trained, retrieves one value among many. Scaling counts what lengths cost. "
        "Recall is Zoology's (arXiv 2312.04927). Language is bits per byte of Python's standard library.\n\n"
        "The body of the paper was not available to us, so all its settings here are those of its published code, and "
        "none of its figures is quoted."
    ),
    reference="normplace.lab.studies.causalrn:STUDY",
    parts=(
        fixed.PART,
        variable.PART,
        ablation.PART,
        state.PART,
        recall.PART,
        language.PART,
        head.PART,
        scaling.PART,
    ),
    claims=CLAIMS,
    figures=figures,
)
