"""``fuse`` returns the same function, reports every sum and norm, and can be undone."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle

import pytest
import torch
from tests.edit.fuse.fuse_models import (
    WIDTH,
    PeriBlock,
    RMSNorm,
    Stack,
    agree,
    build,
    count_kernels,
    first_output,
    fused_parts,
    gradients,
    mlp,
    peri,
    rows,
)
from torch import Tensor, nn

import normplace as npl
from normplace.edit.fuse import numbers as fuse_numbers
from normplace.edit.fuse import runtime as fuse_runtime
from normplace.edit.fuse import verify as fuse_verify
from normplace.edit.fuse.runtime import SUMS, FusedForward, FusedSum
from normplace.edit.fuse.timing import StepTimes, time_steps

fuse_module = importlib.import_module("normplace.edit.fuse.api")

REACHES = ("layer", "stack")
# The compiler looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def fused(model, *inputs, **options):
    return npl.edit.fuse(model, *inputs, only_if_faster=False, **options)


@pytest.fixture
def count(monkeypatch):
    """The numbers of sums and norms that run as one kernel."""
    return count_kernels(monkeypatch)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2", "Qwen3", "Gemma3Text", "Bert", "ViT", "T5"])
@pytest.mark.parametrize("reach", REACHES)
def test_bits_of_the_forward_pass_in_half_precision(name, reach):
    model, inputs = build(name, torch.bfloat16)
    result = fused(model, reach=reach, **inputs)
    with torch.no_grad():
        assert torch.equal(first_output(result.eval()(**inputs)), first_output(model.eval()(**inputs)))


@pytest.mark.parametrize("reach", REACHES)
def test_outputs_and_gradients_of_hand_written_code(reach, count):
    model, x = peri(), rows()
    result = fused(model, x, reach=reach)
    count.update(sum=0, norm=0)
    agree(gradients(result, lambda m: m(x)), gradients(model, lambda m: m(x)))
    # Four sums with an output norm each. The first norm is computed alone, and without joined layers two more are.
    assert count == {"sum": 4, "norm": 1 if reach == "stack" else 3}


def test_every_sum_and_norm_is_reported():
    fusions = npl.changes(fused(peri(), rows())).fusions
    assert [(part.parts, part.name, part.fused) for part in fusions] == [
        ("norm, add, norm", "blocks.0", True),
        ("norm, add", "blocks.0", True),
        ("norm, add, norm", "blocks.1", True),
        ("norm, add", "blocks.1", True),
        ("norm", "blocks.0.before", True),
        ("norm", "blocks.1.before", True),
        ("norm", "final", True),
    ]
    assert fusions[0].norms == ("blocks.0.after", "blocks.0.before2") and fusions[0].bytes_saved > 0
    assert "blocks.1.before" in fusions[1].reason and "final" in fusions[3].reason
    assert "4 x" in str(npl.changes(fused(peri(), rows()))) or "2 x norm, add, norm" in str(
        npl.changes(fused(peri(), rows()))
    )


def test_bytes_saved_are_those_of_the_operators_that_no_longer_run():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    record = npl.edit.plan_fusion(layer, torch.randn(1, 3, 8))
    # The sum and the norm move five tensors of 96 bytes and two statistics of each row; one pass moves four tensors.
    assert [part.bytes_saved for part in record.fusions] == [96 + 24, 96 + 24]


def test_class_and_state_dict_stay_and_other_instances_are_untouched():
    model, x = peri(), rows()
    before = copy.deepcopy(model.state_dict())
    other, expected = peri(), model(x)
    result = fused(model, x, reach="stack")
    assert type(result) is type(model) and result is not model
    assert all(torch.equal(value, before[name]) for name, value in result.state_dict().items())
    assert list(result.state_dict()) == list(before)
    assert [type(module) for module in result.modules()] == [type(module) for module in model.modules()]
    for untouched in (model, other):
        assert not list(fused_parts(untouched))
        assert torch.equal(untouched(x), expected)
    assert "forward" not in vars(PeriBlock()) and "forward" not in vars(RMSNorm())


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_unfuse_restores_the_bits_and_every_attribute(name):
    model, inputs = build(name)
    result = fused(model, reach="stack", compile_branches={"backend": "aot_eager"}, **inputs)
    names = {module_name: set(vars(module)) for module_name, module in model.named_modules()}
    assert npl.edit.unfuse(result) is result
    assert {
        module_name: set(vars(module)) - {"normplace_changes"} for module_name, module in result.named_modules()
    } == {module_name: values - {"normplace_changes"} for module_name, values in names.items()}
    assert all(module._compiled_call_impl is None for module in result.modules())
    one, other = (gradients(m.eval(), lambda m: first_output(m(**inputs))) for m in (result, model))
    assert torch.equal(one[0], other[0]) and all(torch.equal(one[1][key], other[1][key]) for key in other[1])
    assert npl.changes(result).fusions == ()


def test_in_place_and_refusals_leave_the_model_as_it_was(monkeypatch):
    model, x = peri(), rows()
    assert fused(model, x, inplace=True) is model and list(fused_parts(model))
    npl.edit.unfuse(model)
    monkeypatch.setattr(fuse_verify, "FACTOR", 1e-9)
    with pytest.raises(npl.UsageError, match="float64"):
        fused(model, x, inplace=True)
    assert not list(fused_parts(model))


def test_on_a_cpu_nothing_is_fused_and_the_reason_is_reported():
    model, x = peri(), rows()
    result = npl.edit.fuse(model, x)
    assert not list(fused_parts(result)) and result is not model
    record = npl.changes(result)
    assert "CUDA GPU" in record.fusion_note and not any(part.fused for part in record.fusions)
    assert "CUDA GPU" in str(record)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_copies_are_fused_and_independent(reach, clone, count):
    model, x = peri(), rows()
    result = fused(model, x, reach=reach)
    copied = clone(result)
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.zero_()
    count.update(sum=0)
    assert torch.allclose(copied(x), model(x), atol=1e-6) and count["sum"] == 4


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_gradient_checkpointing_in_both_modes(name, reentrant, reach):
    model, inputs = build(name)
    model.config.use_cache = False
    result = fused(model, reach=reach, **inputs)
    results = []
    for each in (result, model):
        each.train()
        each.gradient_checkpointing_enable({"use_reentrant": reentrant})
        each.enable_input_require_grads()
        results.append(gradients(each, lambda m: first_output(m(**inputs))))
    agree(*results)


@pytest.mark.parametrize("reach", REACHES)
def test_compiled_as_a_whole_it_is_the_same_function(reach):
    torch.compiler.reset()
    model, x = peri(), rows()
    # With the decompositions of norms and the division of the graph that a compiler uses.
    compiled = torch.compile(fused(model, x, reach=reach), backend="aot_eager_decomp_partition", fullgraph=True)
    agree(gradients(compiled._orig_mod, lambda _: compiled(x)), gradients(model, lambda m: m(x)))


def test_compiled_branches_are_the_same_function():
    torch.compiler.reset()
    model, inputs = build("Gemma2")
    result = fused(model, compile_branches={"backend": "aot_eager"}, **inputs)
    names = {name for name, module in result.named_modules() if module._compiled_call_impl is not None}
    assert names == {f"layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn", "mlp")}
    agree(*(gradients(m.eval(), lambda m: first_output(m(**inputs))) for m in (result, model)))
    assert all(module._compiled_call_impl is None for module in copy.deepcopy(result).modules())


def test_layers_share_compiled_code():
    """Norms of queries and keys keep their own method: an object that differs between layers would be a new graph."""
    torch.compiler.reset()
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    model, inputs = build("Qwen3")
    with torch.compiler.set_stance("force_eager"):
        result = fused(model, compile_branches={"backend": backend}, **inputs)
    result(**inputs, use_cache=False)
    assert len(result.layers) == 2 and len(graphs) == 2  # attention and MLP
    reasons = {fusion.name: fusion.reason for fusion in npl.changes(result).fusions if not fusion.fused}
    assert reasons["layers.0.self_attn.q_norm"] == "is compiled with its branch"


def test_a_compiled_layer_runs_the_operators_of_the_model(count):
    torch.compiler.reset()
    model, x = peri(), rows()
    result = fused(model, x, reach="stack")
    result.blocks[1].compile(backend="aot_eager")
    count.update(sum=0)
    agree(gradients(result, lambda m: m(x)), gradients(model, lambda m: m(x)))
    assert count["sum"] == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traced_it_consists_of_the_operators_of_the_model():
    model, x = peri(), rows()
    traced = torch.jit.trace(fused(model, x), (x,))
    assert "norm_add_norm" not in str(traced.graph) and torch.equal(traced(x), model(x))


def test_exported_it_consists_of_the_operators_of_the_model():
    model, x = peri(), rows()
    program = torch.export.export(fused(model, x), (x,))
    assert "norm_add_norm" not in str(program.graph)
    assert torch.allclose(program.module()(x), model(x), atol=1e-6)


def test_a_model_is_fused_where_gradients_are_disabled():
    model, x = peri(), rows()
    with torch.no_grad():
        result = fused(model, x)
    assert npl.changes(result).fusions == npl.changes(fused(model, x)).fusions


def test_a_round_trip_through_save_pretrained(tmp_path):
    model, inputs = build("Llama")
    result = fused(model, **inputs).eval()
    result.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(first_output(loaded(**inputs)), first_output(model.eval()(**inputs)))
    again = fused(loaded, **inputs).eval()
    assert torch.equal(first_output(again(**inputs)), first_output(result(**inputs)))


def test_generation_with_a_cache_gives_the_same_tokens():
    import transformers

    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    ids = torch.arange(3, 9)[None]
    result = fused(model, input_ids=ids, reach="stack")
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    assert torch.equal(result.generate(ids, **options), model.generate(ids, **options))


def test_dropout_before_the_add_in_training():
    model, inputs = build("Bert")
    model.config.hidden_dropout_prob = 0.1
    result = fused(model, **inputs)
    outputs = []
    for each in (result, model):
        torch.manual_seed(3)
        outputs.append(gradients(each.train(), lambda m: first_output(m(**inputs))))
    assert any(isinstance(module, nn.Dropout) and module.p for module in model.modules())
    agree(*outputs)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize(
    "loss",
    [lambda y: y.sum(), lambda y: y.mean(1).square().sum(), lambda y: y[..., ::2].transpose(0, 1).square().sum()],
    ids=["expanded", "partly expanded", "strided"],
)
def test_expanded_and_strided_gradients(loss, reach):
    class Bare(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    model, x = Bare(PeriBlock(), PeriBlock()), rows()
    results = []
    for each in (fused(model, x, reach=reach), model):
        loss(each(x)).backward()
        results.append((each(x).detach(), {n: p.grad for n, p in each.named_parameters() if p.grad is not None}))
    agree(*results)


def test_the_gradient_of_a_sum_that_two_readers_share_is_not_overwritten():
    model, x = peri(), rows()
    result = fused(model, x, reach="stack")
    y = result(x)
    first = torch.autograd.grad(y.square().sum(), list(result.parameters()), retain_graph=True)
    second = torch.autograd.grad(y.square().sum(), list(result.parameters()), retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


class Shifted(nn.Module):
    """Changes the sum in place before its norm reads it, if asked to."""

    def __init__(self):
        super().__init__()
        self.norm, self.before, self.branch, self.last = RMSNorm(), RMSNorm(), mlp(), mlp()
        self.shift = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch(self.before(x))
        if self.shift:
            with torch.no_grad():
                x.add_(1.0)
        return x + self.last(self.norm(x))


def test_a_sum_that_is_written_to_is_normalized_again():
    model, x = Shifted(), rows()
    result = fused(model, x)
    assert npl.changes(result).fusions[0].norms == ("norm",)
    for shift in (False, True):
        model.shift = result.shift = shift
        with torch.no_grad():
            assert torch.allclose(result(x), model(x), atol=1e-6)


def test_nothing_is_kept_after_a_pass():
    model, x = peri(), rows()
    gc.collect()
    before = len(fuse_runtime._normed)  # of results that other tests keep alive
    result = fused(model, x, reach="stack")
    y = result(x)
    assert len(fuse_runtime._normed) > before
    y.sum().backward()
    del y
    gc.collect()
    assert len(fuse_runtime._normed) <= before


class Overwriting(PeriBlock):
    """Has no backward pass: it overwrites a tensor that a norm saved."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.after(self.first(self.before(x)))
        x += self.after2(self.second(self.before2(x)))
        return x


def test_a_model_without_a_backward_pass_is_verified_by_its_outputs():
    model, x = Stack(Overwriting()), rows()
    result = fused(model, x)
    with torch.no_grad():
        assert torch.allclose(result(x), model(x), atol=1e-6)
    assert sum(part.fused for part in npl.changes(result).fusions) == 4


def test_hooks_on_norms_see_every_call():
    model, x = peri(), rows()
    result, seen = fused(model, x), []
    for name in ("after", "before2"):
        norm = getattr(result.blocks[0], name)
        norm.register_forward_hook(lambda module, args, output, name=name: seen.append((name, args[0], output)))
    with torch.no_grad():
        assert torch.allclose(result(x), model(x), atol=1e-6)
        assert [name for name, *_ in seen] == ["after", "before2"]
        for name, value, output in seen:
            assert torch.allclose(getattr(model.blocks[0], name)(value), output, atol=1e-6)


class Wrapper(nn.Module):
    """As PEFT wraps a module that it trains a copy of (``modules_to_save``)."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.original_module, self.copy = module, copy.deepcopy(module)

    def forward(self, *args):
        return self.copy(*args)


@pytest.mark.parametrize("name", ["after", "before2", "before"])
def test_a_norm_that_is_replaced_later_is_used(name):
    model, x = peri(), rows()
    result = fused(model, x)
    for each in (model, result):
        wrapper = Wrapper(getattr(each.blocks[0], name))
        wrapper.copy.weight.data.mul_(2)
        setattr(each.blocks[0], name, wrapper)
    one, other = (gradients(each, lambda m: m(x)) for each in (result, model))
    agree(one, other)
    assert f"blocks.0.{name}.copy.weight" in one[1] and f"blocks.0.{name}.original_module.weight" not in one[1]


class LowRank(nn.Module):
    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.base, self.down = linear, nn.Linear(linear.in_features, 2, bias=False)
        self.up = nn.Linear(2, linear.out_features, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_low_rank_adapters_added_before_and_after(first, count):
    def adapt(model: nn.Module) -> None:
        torch.manual_seed(1)
        for block in model.blocks:
            block.first[0], block.second[2] = LowRank(block.first[0]), LowRank(block.second[2])

    model, x = peri(), rows()
    if first:
        adapt(model)
    result = fused(model, x)
    if not first:
        adapt(model)
        adapt(result)
    count.update(sum=0)
    agree(*(gradients(each, lambda m: m(x)) for each in (result, model)))
    assert count["sum"] == 4


class Sharded(Tensor):
    """Imitates a DTensor: a subclass whose memory is not the whole parameter."""


def test_parameters_of_a_tensor_subclass_are_left_to_the_model(count):
    model, x = peri(), rows()
    result = fused(model, x)
    for each in (model, result):
        for norm in each.modules():
            if isinstance(norm, RMSNorm):
                norm.weight = nn.Parameter(norm.weight.detach().as_subclass(Sharded))
    count.update(sum=0, norm=0)
    assert torch.allclose(result(x), model(x), atol=1e-6) and count == {"sum": 0, "norm": 0}
    reasons = [part.reason for part in npl.edit.plan_fusion(model, x).fusions]
    assert any("Sharded" in reason for reason in reasons)


def test_switched_off_the_operators_of_the_model_run(count):
    model, x = peri(), rows()
    result = fused(model, x)
    count.update(sum=0, norm=0)
    with npl.fusion_mode("never"):
        assert torch.equal(result(x), model(x))
    assert count == {"sum": 0, "norm": 0}


def test_functional_calls_use_the_parameters_that_are_passed():
    model, x = peri(), rows()
    result = fused(model, x)
    parameters = {name: value.detach() * 1.5 for name, value in model.named_parameters()}
    one, other = (torch.func.functional_call(each, parameters, (x,)) for each in (result, model))
    assert torch.allclose(one, other, atol=1e-5)
    jacobian = torch.func.jacrev(lambda x: torch.func.functional_call(result, parameters, (x,)))(rows(1))
    expected = torch.func.jacrev(lambda x: torch.func.functional_call(model, parameters, (x,)))(rows(1))
    assert torch.allclose(jacobian, expected, atol=1e-5)


def test_a_fused_model_can_be_audited_and_moved():
    model, x = peri(), rows()
    result = fused(model, x, reach="stack")
    assert npl.audit(result, x).equations == npl.audit(model, x).equations == ("x + N(F(N(x)))",)
    moved, expected = npl.move(result, x, to="pre"), npl.move(model, x, to="pre")
    assert torch.equal(moved(x), expected(x)) and not list(fused_parts(moved))
    again = fused(moved, x)
    assert npl.changes(again).moves == npl.changes(moved).moves and npl.changes(again).fusions


@pytest.mark.parametrize(
    "edit",
    [
        lambda model, x: npl.move(model, x, to="pre"),
        lambda model, x: npl.swap(model, x, norm="layer"),
        lambda model, x: npl.fold(model, x),
        lambda model, x: npl.insert(model, npl.Scale("mass"), values=x[..., 0].exp(), inputs=(x,)),
    ],
    ids=["move", "swap", "fold", "insert"],
)
def test_other_edits_of_a_fused_model_edit_the_model_itself(edit):
    model, x = peri(), rows()
    result, expected = edit(fused(model, x, reach="stack"), x), edit(model, x)
    assert torch.equal(result(x), expected(x)) and not list(fused_parts(result))
    assert npl.changes(result).fusions == ()


def test_a_model_on_the_meta_device_can_be_planned_but_not_fused():
    model = peri().to("meta")
    record = npl.edit.plan_fusion(model, rows())
    assert sum(part.fused for part in record.fusions) == 7
    assert npl.edit.plan_fusion(fused(peri(), rows()), rows()).fusions == record.fusions
    with pytest.raises(npl.UsageError, match="meta"):
        fused(model, rows())


@pytest.mark.parametrize(("options", "words"), [({"reach": "all"}, "reach"), ({"rounding": "twice"}, "rounding")])
def test_unknown_options_raise(options, words):
    with pytest.raises(npl.UsageError, match=words):
        fused(peri(), rows(), **options)
    with pytest.raises(npl.UsageError, match=r"nn\.Module"):
        npl.edit.fuse(3)


def test_rounding_once_is_nearer_to_float64():
    model, inputs = build("Llama", torch.bfloat16)
    truth = fuse_numbers.measure_in_float64(model, ((), inputs)).outputs[0]
    errors = {}
    for rounding in ("model", "once"):
        result = fused(model, rounding=rounding, **inputs).eval()
        errors[rounding] = (first_output(result(**inputs)).double() - truth).norm()
    assert errors["once"] < errors["model"]


def test_parts_are_plain_attributes():
    result = fused(peri(), rows())
    assert all(isinstance(part, FusedSum) for part in vars(result.blocks[0])[SUMS])
    assert isinstance(vars(result.final)["forward"], FusedForward)
    assert result.final.weight.shape == (WIDTH,)


def test_without_memory_for_float64_the_parts_are_verified(monkeypatch):
    monkeypatch.setattr(fuse_module, "available_memory", lambda: 1000)
    result = fused(peri(), rows(), inplace=True)
    assert list(fused_parts(result)) and "only the parts are verified" in npl.changes(result).fusion_note


def test_steps_are_timed_in_turns_and_a_slower_model_is_restored(monkeypatch):
    model, x = peri(), rows()
    monkeypatch.setattr(fuse_module, "_cannot_be_faster", lambda model: None)
    for original, fast in ((1.0, True), (0.5, False)):
        monkeypatch.setattr(fuse_module, "time_steps", lambda *_, before=original: StepTimes(before, 0.6))
        result = npl.fuse(model, x)
        record = npl.changes(result)
        assert bool(list(fused_parts(result))) is fast is any(part.fused for part in record.fusions)
        assert f"{original:.2f} ms before and 0.60 ms after" in record.fusion_note
        assert record.step_ms == (original, 0.6)


def test_the_original_is_timed_without_its_fused_parts(count):
    result = fused(peri(), rows(), compile_branches={"backend": "eager"})
    count.update(sum=0)
    times = time_steps(result, ((rows(),), {}), None)
    assert times.original > 0 and times.fused > 0
    assert count["sum"] == 4 * 13
    assert any(module._compiled_call_impl is not None for module in result.modules())
