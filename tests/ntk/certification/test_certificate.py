"""The certificate on architectures of known boundedness, and on functions that a search cannot decide."""

import copy
import math

import pytest
import torch
from torch import nn

from normplace.errors import UsageError
from normplace.ntk.certification.certificate import certificate

WIDTH = 24


def linear(inputs, outputs):
    """A Linear initialized by a separate generator, so that tests do not depend on each other."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    generator = torch.Generator().manual_seed(7919 * inputs + outputs)
    with torch.no_grad():
        layer.weight.normal_(generator=generator).mul_(inputs**-0.5)
        layer.bias.normal_(generator=generator).mul_(0.1)
    return layer


def mlp(activation=nn.ReLU, before=(None, None), after=(None, None), start=(), end=(), d=3):
    layers, size = list(start), d
    for norm, late in zip(before, after, strict=True):
        layers.append(linear(size, WIDTH))
        layers += [norm(WIDTH)] if norm else []
        layers.append(activation())
        layers += [late(WIDTH)] if late else []
        size = WIDTH
    return nn.Sequential(*layers, linear(WIDTH, 1), *end)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Parallel(nn.Module):
    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return sum(branch(x) for branch in self.branches)


class Residual(nn.Module):
    """Two residual blocks around a linear embedding of the input."""

    def __init__(self, place, final=False):
        super().__init__()
        self.embed = linear(3, WIDTH)
        self.branches = nn.ModuleList(nn.Sequential(linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.final = nn.LayerNorm(WIDTH) if final else nn.Identity()
        self.head = linear(WIDTH, 1)
        self.place = place

    def forward(self, x):
        x = self.embed(x)
        for branch, norm in zip(self.branches, self.norms, strict=True):
            x = x + branch(norm(x)) if self.place == "pre" else norm(x + branch(x))
        return self.head(self.final(x))


def zero_head(model):
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return model


def attention():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = linear(8, 1)
            with torch.no_grad():
                self.attention.in_proj_weight.normal_(generator=torch.Generator().manual_seed(5)).mul_(0.3)

        def forward(self, x):
            x = self.norm(x)
            return self.head(self.attention(x, x, x, need_weights=False)[0])

    return Block().eval()


LN, RMS = nn.LayerNorm, nn.RMSNorm
BOUNDED = {
    "tanh": (lambda: mlp(nn.Tanh), ()),
    "tanh one feature": (lambda: mlp(nn.Tanh, d=1), ()),
    "tanh with a norm it does not need": (lambda: mlp(nn.Tanh, before=(LN, None)), ()),
    "layer norm first": (lambda: mlp(before=(LN, None)), ("1",)),
    "layer norm last": (lambda: mlp(before=(None, LN)), ("3",)),
    "layer norm every": (lambda: mlp(before=(LN, LN)), ("1", "4")),
    "layer norm first, one feature": (lambda: mlp(before=(LN, None), d=1), ("1",)),
    "layer norm after the activation": (lambda: mlp(after=(LN, None)), ("2",)),
    "layer norm after the last activation": (lambda: mlp(after=(None, LN)), ("4",)),
    "layer norm on the input": (lambda: mlp(start=(LN(3),)), ("0",)),
    "layer norm without affine": (
        lambda: mlp(before=(lambda w: LN(w, elementwise_affine=False), None)),
        ("1",),
    ),
    "layer norm with a large eps": (lambda: mlp(before=(lambda w: LN(w, eps=10.0), None)), ("1",)),
    "rms norm": (lambda: mlp(before=(RMS, None)), ("1",)),
    "group norm": (lambda: mlp(before=(lambda w: nn.GroupNorm(2, w), None)), ("1",)),
    "gelu with layer norm": (lambda: mlp(nn.GELU, before=(None, LN)), ("3",)),
    "layer norm beside batch norm": (lambda: mlp(before=(nn.BatchNorm1d, LN)).eval(), ("4",)),
    "residual pre-norm, final norm": (lambda: Residual("pre", final=True), ("final",)),
    "residual post-norm": (lambda: Residual("post"), ("norms.0", "norms.1")),
    "norms in both parallel branches": (
        lambda: Parallel(mlp(before=(LN, None)), mlp(before=(None, LN))),
        ("branches.0.1", "branches.1.3"),
    ),
    "sigmoid output": (lambda: mlp(end=(nn.Sigmoid(),)), ()),
    "zero head over a layer norm": (lambda: zero_head(mlp(before=(LN, None))), ("1",)),
    "powers that overflow before a norm": (
        lambda: mlp(start=(linear(3, 4), Function(lambda x: x**9), Function(lambda x: x**3)), d=4, before=(LN, None)),
        ("4",),
    ),
}
UNBOUNDED = {
    "relu": (lambda: mlp(), 1, 2),
    "relu, one feature": (lambda: mlp(d=1), 1, 2),
    "leaky relu": (lambda: mlp(nn.LeakyReLU), 1, 2),
    "gelu": (lambda: mlp(nn.GELU), 1, 2),
    "silu": (lambda: mlp(nn.SiLU), 1, 2),
    "linear": (lambda: nn.Sequential(linear(3, 1)), 1, 2),
    "squared relu": (lambda: mlp(lambda: Function(lambda x: x.relu().square())), 4, 8),
    "batch norm in eval mode": (lambda: mlp(before=(nn.BatchNorm1d, nn.BatchNorm1d)).eval(), 1, 2),
    "layer norm in one of two branches": (lambda: Parallel(mlp(before=(LN, None)), mlp()), 1, 2),
    "residual pre-norm, growing stream": (lambda: Residual("pre"), 1, 2),
    "a fixed skip that training does not touch": (
        lambda: Parallel(mlp(before=(LN, None)), Function(lambda x: x[:, :1])),
        1,
        0,
    ),
    "tanh with a linear skip": (lambda: Parallel(mlp(nn.Tanh), nn.Sequential(linear(3, 1))), 1, 2),
    "zero head over relu": (lambda: zero_head(mlp()), 1, 2),
    "square root": (lambda: mlp(start=(Function(lambda x: x.abs().sqrt()),)), 0.5, 1),
}
UNKNOWN = {
    "logarithm": lambda: nn.Sequential(Function(lambda x: x.abs().log1p()), linear(3, 1)),
    "squared logarithm": lambda: nn.Sequential(Function(lambda x: x.abs().log1p().square()), linear(3, 1)),
    "log log": lambda: nn.Sequential(Function(lambda x: x.abs().log1p().log1p()), linear(3, 1)),
    "slow power": lambda: nn.Sequential(Function(lambda x: x.abs() ** 0.05), linear(3, 1)),
}
# The output is bounded at all parameters, although a search along rays cannot decide it.
PROVEN_ONLY = {
    "slow convergence": lambda: nn.Sequential(Function(lambda x: (1 + x.abs()) ** -0.05), linear(3, 1)),
    "periodic": lambda: mlp(lambda: Function(torch.sin)),
    "periodic features": lambda: nn.Sequential(Function(torch.sin), linear(3, 1)),
    "a bound far away": lambda: nn.Sequential(linear(3, 4), nn.Hardtanh(-1e12, 1e12), linear(4, 1)),
}


def data(d=3):
    return torch.randn(16, d, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded(name):
    build, responsible = BOUNDED[name]
    model = build()
    x = data(1 if "one feature" in name else 3)
    result = certificate(model, x, directions=2)
    assert result.verdict == "bounded", str(result)
    both = name == "norms in both parallel branches"
    assert result.responsible == responsible, str(result)
    assert ("none suffices alone" in result.norm_note) == both
    assert abs(result.output_exponent) < 0.05 and result.kernel_exponent < 0.05


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded(name):
    build, output, kernel = UNBOUNDED[name]
    result = certificate(build(), data(1 if "one feature" in name else 3), directions=2)
    assert result.verdict == "unbounded", str(result)
    assert result.output_exponent == pytest.approx(output, abs=0.05)
    assert result.kernel_exponent == pytest.approx(kernel, abs=0.05)
    assert result.responsible == ()


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_rather_than_a_guess(name):
    result = certificate(UNKNOWN[name](), data(), directions=2)
    assert result.verdict == "unknown" and result.witness is None, str(result)
    assert "found no growth, which proves nothing" in result.reason
    assert "0 (Function)" in result.obstacle


@pytest.mark.parametrize("name", PROVEN_ONLY)
def test_a_proof_does_not_depend_on_what_the_search_sees(name):
    result = certificate(PROVEN_ONLY[name](), data(), directions=2)
    assert result.verdict == "bounded" and result.proof and result.obstacle == "", str(result)
    assert ("the bound is large" in result.reason) == (name == "a bound far away")


def test_an_overflow_that_exact_arithmetic_does_not_have_is_reported():
    model = nn.Sequential(Function(lambda x: x.half()), Function(lambda x: x.double()), nn.LayerNorm(3), linear(3, 1))
    result = certificate(model, data(), directions=1, ablate=False)
    assert result.verdict == "bounded"
    assert "the proof is in exact arithmetic, and here numbers overflow at t = " in result.reason
    distance = float(result.reason.split("t = ")[1].rstrip("."))
    assert 65504 / math.sqrt(10) < distance < 3 * 65504 * math.sqrt(10)
    del model[:2]
    assert "overflow" not in certificate(model, data(), directions=1, ablate=False).reason


MIXING = {
    "centred over the batch": lambda x: (x - x.mean(0)).tanh(),
    "softmax over the batch": lambda x: x.softmax(0),
    "sorted over the batch": lambda x: x.sort(0)[0],
    "accumulated over the batch": lambda x: x.cumsum(0),
    "summed over the batch": lambda x: x.sum().tanh(),
    "another function of single samples": lambda x: x.tanh() if len(x) == 1 else x,
    "attention over the batch": lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_samples_is_refused(name):
    with pytest.raises(UsageError, match="changes with the other samples of the batch"):
        certificate(nn.Sequential(linear(3, 2), Function(MIXING[name])), data())


def test_models_written_for_one_sample_are_judged():
    for function in (lambda x: x.reshape(3)[None].tanh(), lambda x: x[:1].tanh()):
        assert certificate(nn.Sequential(Function(function), linear(3, 1)), data(), ablate=False).verdict == "bounded"


def test_the_data_do_not_change():
    x = data().double()
    before = x.clone()
    certificate(nn.Sequential(Function(lambda x: x.mul_(2)), linear(3, 1)), x, directions=1, changes=0)
    assert torch.equal(x, before)


def test_the_reasons_describe_the_growth():
    assert "after a small change" in certificate(zero_head(mlp()), data()).reason
    assert (
        "training does not touch"
        in certificate(UNBOUNDED["a fixed skip that training does not touch"][0](), data()).reason
    )


def test_output_and_kernel_have_separate_verdicts():
    periodic = certificate(PROVEN_ONLY["periodic"](), data())
    assert (periodic.verdict, periodic.kernel) == ("bounded", "unbounded")
    assert periodic.kernel_exponent == pytest.approx(2, abs=0.5) and periodic.output_exponent < 0.25
    first = certificate(mlp(before=(LN, None)), data(), ablate=False)
    assert (first.verdict, first.kernel) == ("bounded", "unknown")
    whole = certificate(mlp(start=(LN(3),)), data(), ablate=False)
    assert (whole.verdict, whole.kernel) == ("bounded", "bounded")
    fixed = certificate(UNBOUNDED["a fixed skip that training does not touch"][0](), data())
    assert (fixed.verdict, fixed.kernel) == ("unbounded", "unknown")


class Mixture(nn.Module):
    """Hard routing to one of sixteen experts; all of them, or all but one, are normalized."""

    def __init__(self, seed, bare, dense):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.gate = nn.Linear(8, 16)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.Identity() if bare and e == 5 else nn.LayerNorm(8), nn.ReLU())
                for e in range(16)
            )
            self.head = nn.Linear(8, 1)
        self.dense = dense

    def forward(self, x):
        chosen = self.gate(x).argmax(1)
        if self.dense:
            outputs = torch.stack([expert(x) for expert in self.experts], 1)
            return self.head(outputs.gather(1, chosen[:, None, None].expand(-1, 1, 8))[:, 0])
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                y[mask] = expert(x[mask])
        return self.head(y)


@pytest.mark.parametrize("dense", [False, True])
def test_a_mixture_with_one_unnormalized_expert_is_never_bounded(dense):
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    options = {"directions": 1, "changes": 0, "decades": 6}
    verdicts = [certificate(Mixture(seed, True, dense), x, **options).verdict for seed in range(8)]
    assert "bounded" not in verdicts
    # Many directions are tried at one distance before the search gives up, so most of these are refuted.
    assert verdicts.count("unbounded") >= 6


def test_densely_routed_normalized_experts_are_proven_bounded():
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    assert certificate(Mixture(0, False, True), x, ablate=False).verdict == "bounded"
    routed = certificate(Mixture(0, False, False), x, ablate=False, directions=1, changes=0)
    assert routed.verdict == "unknown" and "values of a tensor" in routed.obstacle


def cone(width):
    """A ReLU network that is zero except in a cone of half angle about 1/width around the first axis."""
    first, second, head = nn.Linear(6, 11, bias=False), nn.Linear(11, 1, bias=False), nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        sides = torch.eye(6)[1:]
        first.weight.copy_(torch.cat([torch.eye(6)[:1], sides, -sides]))
        second.weight.copy_(torch.tensor([[1.0] + [-float(width)] * 10]))
        head.weight.fill_(1.0)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), head)


@pytest.mark.parametrize("width", [1, 30, 1e6])
def test_a_cone_of_growth_is_never_bounded(width):
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    result = certificate(cone(width), x, changes=0)
    assert result.verdict in {"unknown", "unbounded"}
    along = certificate(cone(width), torch.zeros(1, 6), directions=torch.eye(6)[:1], changes=0)
    assert along.verdict == "unbounded"
    assert along.witness is not None and along.witness.parameters == "given"
    assert along.witness.direction == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert along.witness.exponent == pytest.approx(1, abs=0.01)


def test_the_witness_is_a_ray_along_which_the_output_grows():
    model = mlp()
    seen = certificate(model, data(), changes=0).witness
    assert seen is not None
    start, direction = (torch.tensor(one, dtype=torch.float64) for one in (seen.start, seen.direction))
    near, far = (model.double()((start + t * direction)[None]).abs().max().item() for t in (1e6, 1e9))
    assert far / near == pytest.approx(1e3, rel=0.05)


def test_sequences_through_attention():
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(3))
    model = attention()
    result = certificate(model, x, directions=2)
    assert result.verdict == "bounded" and result.responsible == ("norm",), str(result)
    model.norm = nn.Identity()
    assert certificate(model, x, directions=2).verdict == "unbounded"


def test_the_final_norm_bounds_a_pre_norm_transformer():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = linear(4, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
            self.final = nn.LayerNorm(8)
            self.head = linear(8, 1)

        def forward(self, x):
            return self.head(self.final(self.layer(self.embed(x))))

    model = Encoder().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            if parameter.ndim == 2:
                parameter.normal_(generator=generator).mul_(0.3)
    x = torch.randn(6, 5, 4, generator=generator)
    result = certificate(model, x, directions=1, changes=1)
    # Without the norm before attention the gradient at large distances is growing rounding error.
    assert result.verdict == "bounded" and result.responsible == ("final",), str(result)
    model.final = nn.Identity()
    assert certificate(model, x, directions=1, changes=1).verdict == "unbounded"


class BareAttention(nn.Module):
    """Attention without a norm: at large distances its gradient is the rounding error of numbers that cancel."""

    def __init__(self):
        super().__init__()
        self.embed = linear(4, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.final = nn.LayerNorm(16)
        self.head = linear(16, 1)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            self.attention.in_proj_weight.normal_(generator=generator).mul_(0.2)
            self.attention.out_proj.weight.normal_(generator=generator).mul_(0.2)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.final(x + self.attention(x, x, x, need_weights=False)[0]))


def test_rounding_error_is_not_growth():
    x = torch.randn(6, 7, 4, generator=torch.Generator().manual_seed(1))
    result = certificate(BareAttention().eval(), x, directions=2, changes=0, ablate=False)
    assert result.verdict == "bounded", str(result)
    assert any(row.kernel.decades < 10 for row in result.rays)


def test_images_through_convolutions():
    layers = [
        nn.utils.skip_init(nn.Conv2d, 1, 4, 3),
        nn.GroupNorm(1, 4),
        nn.ReLU(),
        nn.Flatten(),
        linear(64, 1),
    ]
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in layers[0].parameters():
            parameter.normal_(generator=generator)
    x = torch.randn(5, 1, 6, 6, generator=generator)
    normed = certificate(nn.Sequential(*layers), x)
    assert normed.verdict == "bounded" and normed.responsible == ("1",)
    del layers[1]
    assert certificate(nn.Sequential(*layers), x).verdict == "unbounded"


def test_many_outputs():
    wide = nn.Sequential(linear(3, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), linear(WIDTH, 40))
    assert certificate(wide, data()).verdict == "bounded"
    wide[1] = nn.Identity()
    assert certificate(wide, data()).verdict == "unbounded"


def test_exponential_growth_overflows_and_is_still_seen():
    result = certificate(nn.Sequential(linear(3, 4), Function(torch.exp), linear(4, 1)), data())
    assert result.verdict == "unbounded"
    assert "overflowed" in result.reason
    assert min(row.output.decades for row in result.rays) < 4


def test_frozen_parameters_are_excluded_from_the_kernel():
    model = mlp()
    for parameter in model[:-1].parameters():
        parameter.requires_grad_(False)
    head_only = certificate(model, data())
    assert head_only.verdict == "unbounded" and head_only.kernel_exponent == pytest.approx(2, abs=0.05)


def test_the_model_and_the_global_rng_state_do_not_change():
    model = mlp(before=(LN, nn.BatchNorm1d)).eval()
    before = copy.deepcopy(model.state_dict())
    generator_state, threads = torch.get_rng_state(), torch.get_num_threads()
    certificate(model, data())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())
    assert torch.equal(generator_state, torch.get_rng_state()) and threads == torch.get_num_threads()


def test_it_is_a_function_of_its_generator():
    one, two = (certificate(mlp(), data(), generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert one == two
    assert one != certificate(mlp(), data())


def test_custom_directions_and_no_ablation():
    # The second feature is dead, so the output grows along the first feature only.
    model = nn.Sequential(Function(lambda x: x * torch.tensor([1.0, 0.0, 0.0])), linear(3, 1))
    along = [certificate(model, data(), directions=torch.eye(3)[[axis]]).verdict for axis in (0, 1)]
    assert along == ["unbounded", "unknown"]
    result = certificate(mlp(before=(LN, None)), data(), ablate=False)
    assert result.norms == () and "none was ablated" in result.norm_note


def test_text_and_dict_of_a_certificate():
    result = certificate(mlp(before=(LN, LN)), data())
    text = str(result)
    assert text.startswith("bounded: ") and "not a proof" in text
    assert "each of 1, 4 suffices alone" in text
    assert "norm 1 (LayerNorm): bounded without it, bounded alone" in text
    record = result.to_dict()
    # A proof covers all parameters, so only the current ones are searched.
    assert record["verdict"] == "bounded" and len(record["rays"]) == 6
    assert {norm["without"] for norm in record["norms"]} == {"bounded"}


def poisoned():
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    return model


@pytest.mark.parametrize(
    ("model", "x", "options", "message"),
    [
        (mlp, torch.zeros(4), {}, r"x\[:, None\]"),
        (mlp, torch.zeros(4, 2), {}, r"cannot run on one sample of shape \(2,\)"),
        (mlp, torch.zeros(4, 3, dtype=torch.int64), {}, "convert"),
        (mlp, torch.full((4, 3), math.inf), {}, "non-finite"),
        (mlp, torch.zeros(0, 3), {}, "empty"),
        (mlp, torch.zeros(4, 3), {"decades": 2}, "at least 4"),
        (mlp, torch.zeros(4, 3), {"radius": -1.0}, "radius"),
        (mlp, torch.zeros(4, 3), {"directions": 0}, "positive whole number"),
        (mlp, torch.zeros(4, 3), {"directions": torch.ones(2, 4)}, "directions have shape"),
        (mlp, torch.zeros(4, 3), {"directions": torch.zeros(2, 3)}, "direction is zero"),
        (mlp, torch.zeros(4, 3), {"changes": -1}, "changes"),
        (
            lambda: mlp(before=(nn.BatchNorm1d, None)),
            torch.zeros(4, 3),
            {},
            "BatchNorm1d '1' mixes the samples of a batch",
        ),
        (lambda: mlp(end=(nn.Dropout(0.1),)), torch.zeros(4, 3), {}, "Dropout '5' in training mode is active"),
        (
            lambda: mlp(end=(Function(lambda x: x * torch.rand(())),)),
            torch.ones(4, 3),
            {},
            "two different outputs",
        ),
        (lambda: mlp(end=(Function(lambda x: (x, x)),)), torch.zeros(4, 3), {}, "returns a tuple"),
        (lambda: mlp(end=(Function(lambda x: x / 0),)), torch.ones(4, 3), {}, "not finite"),
        (lambda: mlp().requires_grad_(False), torch.zeros(4, 3), {}, "no trainable parameter"),
        (lambda: torch.relu, torch.zeros(4, 3), {}, "must be a torch.nn.Module"),
        (lambda: mlp().to("meta"), torch.zeros(4, 3), {}, "parameters are on meta"),
        (poisoned, torch.zeros(4, 3), {}, "parameter 0.weight is not finite"),
    ],
)
def test_invalid_input_raises_a_usage_error(model, x, options, message):
    with pytest.raises(UsageError, match=message):
        certificate(model(), x, **options)
