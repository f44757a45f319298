"""PostDeg: Placement Beats Parameterization in LayerNorm GNNs (arXiv 2606.14022)."""

from normplace.lab.studies.postdeg import (
    budgets,
    classical,
    extended,
    mis,
    plateau,
    recommend,
    selection,
    social,
    topologies,
    transfer,
)
from normplace.lab.studies.postdeg.claims import CLAIMS
from normplace.lab.studies.postdeg.figures import figures
from normplace.lab.studies.postdeg.headline import HEADLINE
from normplace.lab.trials.study import Study

STUDY = Study(
    name="postdeg",
    title="A degree scale survives after LayerNorm, not before it",
    paper="Tomar, Das, PostDeg: Placement Beats Parameterization in LayerNorm GNNs, arXiv 2606.14022",
    summary=(
        "Only the abstract and the opening of the paper were available to us. All formulas, graphs, budgets, training "
        "details and definitions of falsifiers are our choices.\n\n"
        "Selection: a policy of three residual blocks of width 32, with LayerNorm after each add, scores the nodes of "
        "a graph. It is trained by REINFORCE on Plackett-Luce orders of random graphs of 30 to 80 nodes (scale-free, "
        "uniform, scale-free with triangles, and clustered) and tested on unseen graphs of 100 to 200 nodes, ranked "
        "once by score. Dismantling is measured by R, influence by the share of nodes that a tenth of them activates "
        "under the weighted cascade, independent sets by the share of nodes chosen greedily. PostDeg multiplies the "
        "normalized output of each block by the inverse degree. Node numbers are shuffled, so that ties are "
        "independent of degree.\n\n"
        "Classical: classical methods on the same unseen graphs, measured in the same way.\n\n"
        "Topologies: policies trained on random graphs of 40 to 300 nodes, compared with classical methods on nine "
        "real graphs of up to 265,000 nodes (full), or on four of them with shorter training (laptop).\n\n"
        "Transfer: policies with and without PostDeg, trained on random graphs, rank the nodes of the same real graphs "
        "once; influence chooses a tenth of the nodes in training and in the test.\n\n"
        "Mis: independent sets of the usual benchmark graphs, ER-[700-800] and Model RB, by policies, the minimum "
        "degree and KaMIS.\n\n"
        "Budgets: influence policies trained with the share of seeds, the sizes and the degree tails that they are "
        "tested with, on configuration models.\n\n"
        "Extended: the map of selection with more placements, convolutions, inputs, scalars and powers; a linear probe "
        "measures how much of the degree reaches the head without a scale.\n\n"
        "Recommend: a practical application. LightGCN and normalized residual networks with the same propagation rank "
        "items for users of MovieLens 100K (laptop) or Gowalla (full), by LightGCN's protocol.\n\n"
        "Plateau: the normalized networks of recommend, each trained until the recall of held-out pairs stops "
        "improving, with a learning rate of its own.\n\n"
        "Social: residual stacks classify the workers of Tolokers and the streamers of two Twitch graphs, with and "
        "without a degree scale before or after LayerNorm. The degree alone predicts the classes of Twitch only."
    ),
    reference="normplace.lab.studies.postdeg:STUDY",
    parts=(
        selection.PART,
        classical.PART,
        topologies.PART,
        transfer.PART,
        mis.PART,
        budgets.PART,
        extended.PART,
        recommend.PART,
        plateau.PART,
        social.PART,
    ),
    claims=CLAIMS,
    figures=figures,
    headline=HEADLINE,
    demo="Two of five seeds of the policies without a scale, with it before the norm, and with it after. Verdicts "
    "need five. With a constant input the backbone ranks nodes no better than a random order, so the gain over it "
    "does not count. The falsifiers are not in the demo.",
)
