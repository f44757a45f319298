"""DeeperGCN: All You Need to Train Deeper GCNs (arXiv 2006.07739)."""

from normplace.lab.studies.deepergcn import (
    aggregation,
    anchors,
    depth,
    dropout,
    initial_gradients,
    memory,
    molhiv,
    molhiv_official,
    orders,
    recipes,
)
from normplace.lab.studies.deepergcn.claims import CLAIMS
from normplace.lab.studies.deepergcn.figures import figures
from normplace.lab.studies.deepergcn.headline import HEADLINE
from normplace.lab.trials.study import Study

STUDY = Study(
    name="deepergcn",
    title="Pre-activation residuals make graph networks deep",
    paper="Li, Xiong, Thabet, Ghanem, DeeperGCN: All You Need to Train Deeper GCNs, arXiv 2006.07739",
    summary=(
        "Depth: stacks of generalized convolutions in three block orders are trained to classify nodes. res+ is norm, "
        "activation, convolution, add; res is convolution, norm, activation, add; plain is res without the add. "
        "Grid-mines is generated after the description of Minesweeper in arXiv 2302.11640, so it needs no data; "
        "Minesweeper and Tolokers are the published graphs. Everything else is the same: BatchNorm, one linear layer "
        "per convolution, softmax aggregation with learned temperature, branch dropout. After training, over-smoothing "
        "is measured after every block.\n\n"
        "Dropout: the published res has stream dropout, the published res+ branch dropout; here both orders are "
        "trained with both. Aggregation: fixed and learned aggregations, and MsgNorm, in res+ stacks. Memory: one "
        "training step of reversible (arXiv 2106.07476), checkpointed and stored networks that compute the same "
        "function. Molhiv: the published network with the published parameter count. Anchors: official splits, "
        "compared with the best published scores we know.\n\n"
        "Orders: four block orders, ten aggregations and depths up to 112 over ten official splits, with the train "
        "score, the gradient of every convolution and the smoothness after every block; dense is res with "
        "concatenation in place of the add. Molhiv-official: the official recipe, with and without a degree scale "
        "after the norms. Recipes: networks chosen for the best published scores. Initial-gradients: the gradient of "
        "every convolution of untrained stacks with BatchNorm, LayerNorm and no norm.\n\n"
        "The paper's ablation tables are not known to us. Widths, learning rates, epochs and thresholds of the node "
        "tasks are our choices."
    ),
    reference="normplace.lab.studies.deepergcn:STUDY",
    parts=(
        molhiv.PART,
        depth.PART,
        dropout.PART,
        aggregation.PART,
        anchors.PART,
        memory.PART,
        orders.PART,
        molhiv_official.PART,
        recipes.PART,
        initial_gradients.PART,
    ),
    claims=CLAIMS,
    figures=figures,
    headline=HEADLINE,
    demo="All networks of scale laptop, of 2, 7 and 16 layers on a generated graph. Networks of over a hundred layers "
    "and ROC-AUC on ogbg-molhiv need scale full.",
)
