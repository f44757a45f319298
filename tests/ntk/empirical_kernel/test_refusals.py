"""Models without a kernel and invalid arguments raise a UsageError with a message."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError
from normplace.ntk import empirical, empirical_blocks

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.lin, self.function = nn.Linear(3, 3), function

    def forward(self, x):
        return self.function(self.lin(x))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.lin(x)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        y = self.lin(x)
        return self.lin(y) if len(x) > 8 else y + 0 * self.lin(y) if len(x) > 20 else y


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        x = x + 1
        y = self.lin(x)
        x.mul_(2)
        return y + x


class ComplexScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return (x * self.scale).abs()


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x, edge_index):
        source, target = edge_index
        return self.lin(x).index_add(0, target, x[source])


class FixedGraph(nn.Module):
    """A graph whose edges refer to more rows than a batch of eight has."""

    def __init__(self):
        super().__init__()
        self.net = Graph()

    def forward(self, x):
        return self.net(x, torch.tensor([[0, 29], [29, 0]]))


class Computed(nn.Module):
    """A model with a tensor that was computed from a parameter before the forward pass."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.squared = self.scale**2

    def forward(self, x):
        return x * self.squared


def reentrant():
    lin = nn.Linear(3, 3)
    return Function(lambda y: checkpoint(lin, y, use_reentrant=True))


def dropout_lstm():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 2, num_layers=2, dropout=0.5)

        def forward(self, x):
            return self.rnn(x[:, None])[0]

    return Model()


def frozen():
    return nn.Linear(3, 1).requires_grad_(False)


def broken(x, value):
    x = x.clone()
    x[2, 1] = value
    return x


MODELS = {
    "BatchNorm1d '1' mixes the samples of a batch": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "BatchNorm1d mixes": lambda: nn.BatchNorm1d(3, track_running_stats=False).eval(),
    "batch normalization with batch statistics mixes": lambda: Function(
        lambda y: F.batch_norm(y, None, None, training=True)
    ),
    "Dropout '1' in training mode is active": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)),
    "dropout (dropout) is active": lambda: Function(lambda y: F.dropout(y, 0.2)),
    "dropout (scaled_dot_product_attention) is active": lambda: Function(
        lambda y: F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], dropout_p=0.5)[:, 0]
    ),
    "the dropout of LSTM 'rnn' in training mode is active": dropout_lstm,
    "different outputs for the same input": lambda: Function(lambda y: y + torch.rand_like(y)),
    "changes with the other samples in the batch": lambda: Function(lambda y: y - y.mean(0)),
    "changes with the other": lambda: Function(lambda y: y - y.mean(0).detach()),
    "with the other samples": lambda: Function(lambda y: y.cumsum(0)),
    "the other samples": lambda: Function(lambda y: y.flip(0).cumsum(0).flip(0)),
    "changes its buffer Counting.seen in every forward pass": Counting,
    "the model returns a tuple, not a tensor": lambda: Function(lambda y: (y, y)),
    "which is not one row per sample": lambda: Function(lambda y: y.mean(0)),
    "not one row per sample": lambda: Function(lambda y: y.sum()),
    "has dtype torch.int64, which has no gradient": lambda: Function(lambda y: y.argmax(1, keepdim=True)),
    "does not depend on any chosen parameter": lambda: Function(lambda y: y.detach()),
    "no trainable parameters are chosen": frozen,
    "runs different layers": Branching,
    "overwrites the input of parameter 'lin.weight' in place": Overwriting,
    "parameter 'weight' is on meta, but the samples are on cpu": lambda: nn.Linear(3, 1, device="meta"),
    "the samples have dtype torch.float32, but the model's parameters have torch.float64": lambda: nn.Linear(
        3, 1
    ).double(),
    "parameter 'weight' has no shape yet": lambda: nn.LazyLinear(2),
    "model is a function": lambda: F.relu,
    "parameter 'scale' has dtype torch.complex64: the kernel needs real": lambda: ComplexScale(),
    "cannot run on 8 sample(s) of shape (3,) and dtype torch.float32 (RuntimeError": lambda: nn.Linear(4, 1),
    "missing 1 required positional argument: 'edge_index'": lambda: Graph(),
    "for a graph network, one sample is a whole graph": lambda: FixedGraph(),
    "the model cannot run on 8 sample(s)": lambda: Function(lambda y: {}["missing"]),
    "cannot differentiate the model (RuntimeError: Trying to backward": Computed,
    "without re-entrant checkpoints": reentrant,
    "holds no numbers": lambda: Function(lambda y: y[:, :0]),
}


@pytest.mark.parametrize("sentence", MODELS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_models(sentence, diagonal):
    x = X.repeat(5, 1) + torch.arange(30)[:, None]
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        empirical(MODELS[sentence](), x, diagonal=diagonal)
    one_sentence(caught.value)


def test_embeddings():
    ids = torch.arange(6).reshape(3, 2)
    for settings, sentence in (
        ({"max_norm": 1.0}, "changes its weights"),
        ({"scale_grad_by_freq": True}, "counts over"),
    ):
        with pytest.raises(UsageError, match=sentence):
            empirical(nn.Embedding(7, 2, **settings), ids)


def test_the_buffers_of_a_rejected_model_are_restored():
    model = Counting()
    with pytest.raises(UsageError):
        empirical(model, X)
    assert model.seen == 0


ARGUMENTS = {
    "samples of x1 have shape (3,), but of x2 (2,)": {"x2": X[:, :2]},
    "x1 has dtype torch.float32, but x2 has torch.float64": {"x2": X.double()},
    "x1 is on cpu, but x2 is on meta": {"x2": X.to("meta", dtype=torch.float32)},
    "x1 has NaN or infinite values": {"x1": broken(X, torch.nan)},
    "x2 has NaN or infinite values": {"x2": broken(X, torch.inf)},
    "x1 has shape (0, 3) and no samples": {"x1": X[:0]},
    "x2 has shape () and no samples": {"x2": X[0, 0]},
    "x1 is a list": {"x1": [1.0]},
    "x1 has shape (6, 0), so its samples are empty": {"x1": X[:, :0]},
    "x2 is a sparse or nested tensor": {"x2": X.to_sparse()},
    "unknown output 'traces': did you mean 'trace'?": {"output": "traces"},
    "diagonal=True computes pairs (x_i, x_i)": {"diagonal": True, "x2": X},
    "memory_gb is 0": {"memory_gb": 0},
    "memory_gb is nan": {"memory_gb": float("nan")},
    "unknown parameter 'weigth': did you mean 'weight'?": {"parameters": ["weigth"]},
    "an object of type Parameter in parameters is not a parameter of this model": {
        "parameters": [nn.Parameter(torch.ones(1))]
    },
    "an object of type int in parameters": {"parameters": [3]},
    "no trainable parameters": {"parameters": lambda name, p: False},
    "GB, but cpu has": {"x1": torch.zeros(1, 3).expand(10**6, 3)},
}


@pytest.mark.parametrize("sentence", ARGUMENTS)
def test_arguments(sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        empirical(nn.Linear(3, 1), **{"x1": X, **ARGUMENTS[sentence]})
    one_sentence(caught.value)


def test_invalid_arguments_of_a_stream_raise_at_the_call():
    with pytest.raises(UsageError, match="block must be a whole number"):
        empirical_blocks(nn.Linear(3, 1), X, block=0)
    with pytest.raises(UsageError, match="BatchNorm1d"):
        empirical_blocks(nn.BatchNorm1d(3), X)


def one_sentence(error):
    text = str(error)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert len(text) < 300
