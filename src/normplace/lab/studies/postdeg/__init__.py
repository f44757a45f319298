"""PostDeg: Placement Beats Parameterization in LayerNorm GNNs (arXiv 2606.14022)."""

from normplace.lab.studies.postdeg import recommend, selection, social, topologies
from normplace.lab.studies.postdeg.claims import CLAIMS
from normplace.lab.studies.postdeg.figures import figures
from normplace.lab.trials.study import Study

STUDY = Study(
    name="postdeg",
    title="A degree scale survives after LayerNorm, not before it",
    paper="Tomar, Das, PostDeg: Placement Beats Parameterization in LayerNorm GNNs, arXiv 2606.14022",
    summary=(
        "Only the abstract and the opening of the paper were available to us; every formula, graph, budget and "
        "training detail below, and the definition of each falsifier, is ours.\n\n"
        "Selection: a policy of three residual blocks of width 32, LayerNorm after each addition, scores the nodes of "
        "a graph. It is trained by REINFORCE on Plackett-Luce orders of random graphs of 30 to 80 nodes (scale-free, "
        "uniform, scale-free with triangles, and grouped) and tested on unseen graphs of 100 to 200, ordered once by "
        "score. Dismantling is measured by R, influence by the share of nodes that a tenth of them activates under "
        "the weighted cascade, independent sets by the share of nodes taken greedily. PostDeg multiplies each block's "
        "normed output by one over the degree. Node numbers are shuffled, so that ties say nothing of degree.\n\n"
        "Topologies: policies trained on random graphs of 40 to 300 nodes, beside the classical methods, on nine real "
        "graphs of up to 265,000 nodes.\n\n"
        "Recommend: where practitioners would meet the question. LightGCN and normalized residual networks around the "
        "same propagation rank items for users of MovieLens 100K (laptop) or Gowalla (full), by LightGCN's protocol."
        "\n\n"
        "Social: residual stacks classify the workers of Tolokers, with and without a degree scale beside LayerNorm."
    ),
    reference="normplace.lab.studies.postdeg:STUDY",
    parts=(selection.PART, topologies.PART, recommend.PART, social.PART),
    claims=CLAIMS,
    figures=figures,
)
