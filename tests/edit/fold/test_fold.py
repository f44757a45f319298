"""Gains and shifts of norms are folded into the weights that read them, exactly."""

from __future__ import annotations

import copy
import functools
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.analysis.architectures.every import ARCHITECTURES
from tests.edit.small_models import Block, Stack, features
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace.edit.fold.verify import difference, outputs_of

WIDTH = 8


@torch.no_grad()
def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random gains and shifts of norms, and noise on all parameters, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        is_norm = "norm" in type(module).__name__.lower()
        for parameter in module.parameters(recurse=False):
            noise = torch.rand(parameter.shape, generator=generator)
            parameter.add_(noise - 0.5 if is_norm else 0.1 * (noise - 0.5))
    return model.eval()


def assert_folded(model: nn.Module, *inputs: object, folded: int, refused: int = 0, **options: bool) -> nn.Module:
    """Fold a model, and check its outputs, its gains and that unfolding restores its weights."""
    arguments = (inputs, {})
    result = npl.fold(model, *inputs, **options)
    assert difference(outputs_of(model, arguments), outputs_of(result, arguments)) <= 1e-5
    record = npl.changes(result)
    assert (len(record.where("folded")), len(record.refused)) == (folded, refused), record.refused
    for site in record.where("folded"):
        check_neutral(result.get_submodule(site.name))
    if not options.get("center"):
        restored = npl.edit.unfold(result)
        assert restored.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                torch.testing.assert_close(restored.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    return result


def check_neutral(norm: nn.Module) -> None:
    """The gain of a folded norm is exactly one, and its shift exactly zero; Gemma stores its gain minus one."""
    for name, parameter in norm.named_parameters():
        expected = 0 if name == "bias" or type(norm).__name__.startswith("Gemma") else 1
        assert bool((parameter == expected).all())


def architecture(name: str, head: str) -> Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]:
    def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
        case = next(case for case in ARCHITECTURES if case.name == name)
        values = {key: value() if callable(value) else value for key, value in case.config.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, head)(getattr(transformers, f"{name}Config")(**values))
        return randomize(model), dict(case.inputs)

    return build


# How many norms are folded, left alone, and turned into RMSNorms by center=True.
CASES = {
    "LlamaForCausalLM": ("Llama", 5, 0, 0),
    "GemmaForCausalLM": ("Gemma", 5, 0, 0),
    "Qwen3ForCausalLM": ("Qwen3", 5, 4, 0),
    "Gemma2ForCausalLM": ("Gemma2", 5, 4, 0),
    "GPT2LMHeadModel": ("GPT2", 5, 0, 5),
    "GPTNeoXForCausalLM": ("GPTNeoX", 5, 0, 5),
    "FalconForCausalLM": ("Falcon", 3, 0, 3),
    "MixtralForCausalLM": ("Mixtral", 5, 0, 0),
    "DeepseekV3ForCausalLM": ("DeepseekV3", 7, 2, 0),
    "T5ForConditionalGeneration": ("T5", 11, 1, 0),
    "ViTForImageClassification": ("ViT", 5, 0, 5),
    "MambaForCausalLM": ("Mamba", 3, 0, 0),
}


@pytest.mark.parametrize("head", CASES)
def test_architectures(head):
    name, folded, refused, centred = CASES[head]
    model, inputs = architecture(name, head)()
    result = npl.fold(model, **inputs, untie=True, center=centred > 0)
    assert difference(outputs_of(model, ((), inputs)), outputs_of(result, ((), inputs))) <= 1e-5
    record = npl.changes(result)
    assert (len(record.where("folded")), len(record.refused)) == (folded, refused), record.refused
    assert len(record.where("swapped")) == centred
    for site in record.where("folded"):
        check_neutral(result.get_submodule(site.name))
    if not centred:
        restored = npl.edit.unfold(result)
        assert difference(outputs_of(model, ((), inputs)), outputs_of(restored, ((), inputs))) <= 1e-5
        assert restored.state_dict().keys() == model.state_dict().keys()


def test_attention_of_pytorch():
    """Packed projections: of one norm in self-attention, of a norm and the memory in cross-attention."""
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=True, bias=False),
        2,
        enable_nested_tensor=False,
    )
    assert_folded(randomize(encoder), features(2, 3), folded=4)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=True), 1)
    result = assert_folded(randomize(decoder), features(2, 3), features(2, 4), folded=3)
    memory_part = decoder.layers[0].multihead_attn.in_proj_weight[WIDTH:]
    assert torch.equal(result.layers[0].multihead_attn.in_proj_weight[WIDTH:], memory_part)


class Readers(nn.Module):
    """A norm with chosen readers."""

    def __init__(self, read: Callable[[Readers, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.stack, self.embed = nn.Parameter(torch.randn(3, WIDTH, WIDTH)), nn.Embedding(20, WIDTH)
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self, self.norm(x))


def gathered(self: Readers, y: torch.Tensor) -> torch.Tensor:
    """Rows are chosen, flattened and shuffled before their readers."""
    rows = y.reshape(-1, WIDTH)[torch.tensor([3, 0, 1])].roll(1, 0)
    return self.a(2 * rows) @ self.b(rows.flip(0)).T


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda self, y: self.a(y) * self.b(y), None),
        (gathered, None),
        (lambda self, y: self.a(y.mean(1)) + self.b(y.mean((0, 1), keepdim=True))[0], None),
        (lambda self, y: self.a(y.sum(1)), "adds up its rows or features"),
        (lambda self, y: self.a(y.mean(-1, keepdim=True).expand_as(y)), "is not linear in its features"),
        (lambda self, y: sum(expert(y) for expert in self.experts), None),
        (lambda self, y: self.a(y).sigmoid() * y, "multiplies it element by element"),
        (lambda self, y: self.a(y) + y, "adds it to other features"),
        (lambda self, y: self.a(y) + self.a(y.relu()), "is not linear in its features"),
        (lambda self, y: (self.a(y), y), "it is an output of the model"),
        (lambda self, y: self.a(y) + self.a(self.b.weight[:5]), "also multiplies other features"),
        (lambda self, y: self.a(y[..., :4].repeat(1, 1, 2)), "takes some of its features"),
        (lambda self, y: y @ y.transpose(1, 2), "multiplies it with other features"),
        (lambda self, y: self.experts[0](y) + self.experts[1](y), "'experts.2', which may read it too, was not called"),
        (lambda self, y: y @ self.stack[0] + y @ self.stack[2], "only 2 of the 3 parts of 'stack' were used"),
        (lambda self, y: F.linear(y, self.stack.sum(0)), "are computed, not stored"),
        (lambda self, y: y @ self.stack[0] @ self.stack[1] @ self.stack[2], "has no bias that could hold its shift"),
        (lambda self, y: F.layer_norm(y, (WIDTH,)), "another norm, 'the model', reads it"),
        (lambda self, y: torch.cat([y, y]), "joins it with other features"),
    ],
)
def test_readers(read, reason):
    model, x = randomize(Readers(read)), features(2, 5)
    if reason is None:
        assert_folded(model, x, folded=1)
    else:
        with pytest.raises(npl.UsageError, match=reason) as error:
            npl.fold(model, x)
        assert str(error.value).count(". ") == 0


def test_a_shift_needs_a_bias():
    model, x = Readers(lambda self, y: torch.stack([y @ weight for weight in self.stack])), features(2, 5)
    npl.fold(model, x)  # the shift is zero
    with pytest.raises(npl.UsageError, match="'stack' has no bias that could hold its shift"):
        npl.fold(randomize(model), x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.norm = nn.Embedding(20, WIDTH), Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embed(tokens))))


def test_a_tied_head():
    model, tokens = randomize(Tied()), torch.arange(12).view(2, 6)
    folded = assert_folded(model, tokens, folded=1, refused=1)
    assert "tied to the embedding, which does not read it: pass untie=True" in npl.changes(folded).refused[0]
    untied = npl.fold(model, tokens, untie=True)
    assert len(npl.changes(untied).where("folded")) == 2 and untied.head.weight is not untied.embed.weight
    assert torch.equal(untied.embed.weight, model.embed.weight)
    centred = npl.fold(model, tokens, center=True)
    assert any("pass untie=True" in reason and "stays a LayerNorm" in reason for reason in npl.changes(centred).refused)


def test_centring_is_refused_where_something_else_reads_the_stream():
    class Gated(Tied):
        def forward(self, tokens):
            x = self.block(self.embed(tokens))
            return self.norm(x) @ self.head.weight.detach().T * x.mean(-1, keepdim=True).sigmoid()

    model = randomize(Gated())
    model.head.weight = nn.Parameter(torch.randn(20, WIDTH))
    result = npl.fold(model, torch.arange(12).view(2, 6), center=True)
    assert not npl.changes(result).where("swapped")
    assert any("reads the stream without a LayerNorm" in reason for reason in npl.changes(result).refused)


def test_a_trained_fold_is_undone_to_the_same_function():
    model, x = randomize(Stack(Block(), Block())), features(4)
    folded = npl.fold(model, x)
    optimizer = torch.optim.SGD(folded.parameters(), lr=0.05)
    folded(x).square().mean().backward()
    optimizer.step()
    torch.testing.assert_close(npl.edit.unfold(folded)(x), folded(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_gain_of_zero():
    model, x = randomize(Stack(Block())), features(4)
    model.norm.weight[2] = 0
    folded = npl.fold(model, x)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(npl.edit.unfold(folded)(x), model(x), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_save_load_copy_and_pickle(tmp_path):
    model, tokens = randomize(Tied()), torch.arange(12).view(2, 6)
    folded = npl.fold(model, tokens, untie=True, center=True)
    npl.edit.save(folded, tmp_path)
    loaded = npl.edit.load(tmp_path, Tied(), tokens).eval()
    assert torch.equal(loaded(tokens), folded(tokens))
    assert npl.changes(loaded).moves == npl.changes(folded).moves
    for copied in (copy.deepcopy(folded), pickle.loads(pickle.dumps(folded))):
        assert torch.equal(copied(tokens), folded(tokens))
    with pytest.raises(npl.UsageError, match="center=True cannot be undone"):
        npl.edit.unfold(folded)
    with pytest.raises(npl.UsageError, match="there is no fold to undo"):
        npl.edit.unfold(loaded)
    with pytest.raises(npl.UsageError, match="edited after the fold"):
        npl.edit.unfold(npl.swap(npl.fold(model, tokens), tokens, norm="rms"))


@torch.no_grad()
def test_a_folded_hugging_face_model_loads_as_its_class(tmp_path):
    model, inputs = architecture("Llama", "LlamaForCausalLM")()
    folded = npl.fold(model, **inputs)
    folded.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(**inputs).logits, folded(**inputs).logits)
    assert npl.audit(loaded, **inputs).placement == "pre"


def test_a_missed_reader_is_noticed():
    """The recorded pass takes one path, and the verification another."""

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.a = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
            self.b = nn.Sequential(nn.Linear(WIDTH, 4))

        def forward(self, x):
            y = self.norm(x)
            return self.b(y) if y.dtype == torch.float64 else self.a(y)

    with pytest.raises(npl.UsageError, match="computes something else"):
        npl.fold(Branching(), features(3))


def test_what_fold_needs():
    with pytest.raises(npl.UsageError, match="on the meta device has none"):
        npl.fold(nn.LayerNorm(4, device="meta"), torch.randn(2, 4))
    with pytest.raises(npl.UsageError, match=r"fold takes an nn\.Module"):
        npl.fold("model")


class Alternatives(nn.Module):
    """A norm whose reader depends on ``read``."""

    def __init__(self, read: Callable[[Alternatives, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.aux, self.deep = nn.Linear(WIDTH, 3), nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 3))
        self.heads = nn.ModuleDict({"one": nn.Linear(WIDTH, 3), "two": nn.Linear(WIDTH, 3)})
        self.read = read

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.block(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.features(x)
        return self.head(y) if self.read is None else self.read(self, y)


class ByLength(Alternatives):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.aux(self.features(x)) if x.shape[1] > 5 else self.head(self.features(x))


def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


class Decorated(Alternatives):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.aux if x.shape[1] > 5 else self.head)(self.features(x))


class ByProperty(Alternatives):
    @property
    def reader(self) -> nn.Module:
        choose = lambda: self.aux if self.read else self.head  # noqa: E731
        return choose()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reader(self.features(x))


class ByName(Alternatives):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, "aux" if x.shape[1] > 5 else "head")(self.features(x))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (ByLength(), "because 'aux', which may read it too, was not called"),
        (Decorated(), "because 'aux', which may read it too, was not called"),
        (ByProperty(), "because 'aux', which may read it too, was not called"),
        (ByName(), "because 'aux', which may read it too, was not called"),
        (
            Alternatives(lambda self, y: self.heads["one"](y)),
            "because 'heads.two', which may read it too, was not called",
        ),
        (
            Alternatives(lambda self, y: self.head(y) + self.deep(y) if self.training else self.head(y)),
            "because in training mode something else reads it",
        ),
    ],
    ids=["by length", "decorated", "by property", "by name", "another task", "in training"],
)
def test_readers_that_the_pass_does_not_call(model, reason):
    folded = assert_folded(randomize(model), features(2, 3), folded=1, refused=1)
    assert npl.changes(folded).refused[0].startswith(f"'norm' is not folded, {reason}")


def test_the_check_in_training_mode_ignores_random_numbers():
    def read(self: Alternatives, y: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(y, training=self.training)) * (random.random() if self.training else 1)

    assert_folded(randomize(Alternatives(read)), features(2, 3), folded=2)


def test_inputs_in_named_tuples_and_dataclasses():
    class Wrapped(Alternatives):
        def forward(self, batch: Batch | Pair) -> torch.Tensor:
            return super().forward(batch.x)

    for batch in (Batch(features(2, 3)), Pair(features(2, 3), None)):
        assert_folded(randomize(Wrapped()), batch, folded=2)
        npl.audit(Wrapped().to("meta"), batch)


def test_a_model_that_keeps_a_tensor_with_gradients():
    """As mixtures of experts keep their auxiliary loss for the training loop."""

    def read(self: Alternatives, y: torch.Tensor) -> torch.Tensor:
        self.kept = self.head(y)
        return self.kept

    model, x = randomize(Alternatives(read)), features(2, 3)
    model(x)
    assert_folded(model, x, folded=2)
    model(x)
    assert npl.survival(model, x).sites


def test_a_table_next_to_the_readers_that_is_indexed_instead_of_called():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict(
                {"positions": nn.Embedding(9, WIDTH), "block": Block(), "norm": nn.LayerNorm(WIDTH)}
            )
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.parts["positions"].weight[: x.shape[1]]
            return self.head(self.parts["norm"](self.parts["block"](x)))

    assert_folded(randomize(Network()), features(2, 3), folded=2)


def test_an_encoder_that_is_not_called_does_not_read_the_norms_of_another():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoders = nn.ModuleDict({"image": Block(), "text": Block()})

        def forward(self, x: torch.Tensor, kind: str = "image") -> torch.Tensor:
            return self.encoders[kind](x)

    model = randomize(Network())
    folded = assert_folded(model, features(2, 3), folded=1)
    torch.testing.assert_close(folded(features(2, 3), "text"), model(features(2, 3), "text"))


@pytest.mark.parametrize("create", [lambda: torch.ones(WIDTH), lambda: torch.from_numpy(np.ones(WIDTH, np.float32))])
def test_a_model_whose_code_creates_tensors_in_float32(create):
    model = Alternatives(lambda self, y: self.head(y) + self.aux(create()))
    assert_folded(randomize(model), features(2, 3), folded=2)

    class Unread(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + F.linear(create(), self.weight.diag())

    with pytest.raises(npl.UsageError, match="no norm can be folded"):
        npl.fold(Unread(WIDTH), features(2, 3))


@dataclass
class Batch:
    x: torch.Tensor


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor | None


def test_the_default_eps_of_rms_norm_in_float64():
    model = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3)).double()
    assert_folded(randomize(model), features(2, 3).double(), folded=1)
