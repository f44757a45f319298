"""Trainers of transformers and Lightning modules as tasks: what they train with, and that they are not changed."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.lab.compare.tasks.entry import edited, first_batch, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normplace.errors import UsageError
from normplace.lab.compare.as_task import as_task
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.measures import stream_signals
from normplace.lab.compare.task import first_call
from normplace.lab.compare.tasks import LightningTask, TrainerTask
from normplace.lab.compare.tasks.fresh_model import fresh_model
from normplace.lab.compare.trial import take_step

VOCABULARY = 20


class Branch(nn.Module):
    """A map with a parameter that no ``reset_parameters`` reaches."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.map, self.bias = nn.Linear(dim, dim), nn.Parameter(torch.arange(float(dim)))

    def forward(self, x):
        return (self.map(x) + self.bias).relu()


class Block(nn.Module):
    """A post-norm block."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(dim), Branch()

    def forward(self, x):
        return self.norm(x + self.branch(x))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), Block(), Block(), nn.Linear(8, 1))


def samples(count: int = 24) -> TensorDataset:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def test_a_fresh_model_has_new_weights_from_the_global_seed():
    model = network()
    before = copy.deepcopy(model.state_dict())
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(fresh_model(model))
    first, again, other = (result.model for result in results)
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)
    assert first[1].branch.bias.sort().values.tolist() == list(range(8))  # the same values
    assert first[1].branch.bias.tolist() != other[1].branch.bias.tolist()  # in another order
    assert "1.branch.bias, 2.branch.bias have no reset_parameters" in results[0].note
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


class Partly(nn.Module):
    """Frozen positions, a frozen norm with statistics, and weights that are computed from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.arange(12.0).sin(), requires_grad=False)
        self.frozen = nn.BatchNorm1d(4).requires_grad_(False)
        self.frozen.running_mean.fill_(3.0)
        self.partial = nn.Linear(4, 4)
        self.partial.bias.requires_grad_(False)
        self.weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.spectral_norm = nn.utils.spectral_norm(nn.Linear(4, 4))


def test_a_fresh_model_keeps_what_is_frozen():
    model = Partly()
    fresh = fresh_model(model)
    frozen = ["positions", "frozen.weight", "frozen.bias", "partial.bias"]
    for name, parameter in fresh.model.named_parameters():
        assert parameter.requires_grad == (name not in frozen)
        assert name not in frozen or torch.equal(parameter, model.get_parameter(name))
    assert torch.equal(fresh.model.frozen.running_mean, model.frozen.running_mean)
    assert not torch.equal(fresh.model.partial.weight, model.partial.weight)
    assert "positions, frozen.weight, frozen.bias and 1 more are frozen and keep their values." in fresh.note


def test_a_fresh_model_has_new_values_behind_computed_weights():
    model = Partly()
    fresh = fresh_model(model)
    for name in ("weight_norm.parametrizations.weight.original1", "spectral_norm.weight_orig"):
        assert not torch.equal(fresh.model.get_parameter(name), model.get_parameter(name))


lightning = pytest.importorskip("lightning")


class Lit(lightning.LightningModule):
    """Calls its network directly in the training step, and logs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log_dict({"val_loss": (self(x) - y).square().mean(), "other": 0.0})

    def configure_optimizers(self):
        groups = [{"params": self.net[0].parameters(), "lr": 1e-3}, {"params": self.net[1:].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(samples(), 8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(samples(7), 2)


class WithTestStep(Lit):
    def test_step(self, batch, batch_idx):
        return torch.tensor(5.0)


class DataWithTest(Data):
    def test_dataloader(self):
        return DataLoader(samples(3), 2)


def test_a_lightning_module_is_trained_with_its_steps_and_optimizer():
    module = Lit()
    before = copy.deepcopy(module.state_dict())
    task = as_task((module, Data()))
    assert isinstance(task, LightningTask)
    assert task.learning_rate == 1e-2
    assert "Edits apply to net" in task.notes[1]
    start, model = edited(task, "peri")
    assert isinstance(model, nn.Sequential)
    optimizer = start.optimizer(model, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.5]
    untrained = start.validate(model.eval(), "choose")
    measures = trained(task, "peri", steps=30, learning_rate=0.05)
    assert measures["choose"] < untrained
    assert measures["choose"] != measures["report"]
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())


class CallsItself(Lit):
    def training_step(self, batch):
        return (self(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("kind", [Lit, CallsItself])
def test_signals_of_a_lightning_module_are_measured(kind):
    task = LightningTask(kind(), Data())
    start, model = edited(task, "peri")
    batch = first_batch(start)
    args, kwargs = first_call(model, start.loss, batch)
    signals = stream_signals(model, (args, kwargs), start.loss, batch)
    assert signals["stream_peak"] > 0
    start.loss(model, batch).backward()  # the model is in place again
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_test_step_is_reported():
    task = LightningTask(WithTestStep(), DataWithTest(), start="weights")
    start = task.start(3)
    with torch.no_grad():
        assert start.validate(start.model, "report") == 5.0 != start.validate(start.model, "choose")
    assert torch.equal(start.model[0].weight, task.module.net[0].weight)  # the weights of the module


class RandomSplit(lightning.LightningDataModule):
    """Splits its data at random in every stage, as a module that ignores the stage does."""

    def setup(self, stage):
        self.parts = torch.utils.data.random_split(samples(60), [40, 10, 10])

    def train_dataloader(self):
        return DataLoader(self.parts[0], 8)

    def val_dataloader(self):
        return DataLoader(self.parts[1], 2)

    def test_dataloader(self):
        return DataLoader(self.parts[2], 2)


def test_random_splits_of_a_data_module_stay_disjoint():
    torch.manual_seed(5)
    task = LightningTask(WithTestStep(), RandomSplit())
    state = torch.get_rng_state()
    loaders = [task.training, *(loader for _, loader in task.evaluation.values())]
    seen = [index for loader in loaders for index in loader.dataset.indices]
    assert sorted(seen) == list(range(60))
    torch.manual_seed(5)
    LightningTask(WithTestStep(), RandomSplit())
    assert torch.equal(torch.get_rng_state(), state)


class LogsAccuracy(Lit):
    loss_name = "val_loss"

    def validation_step(self, batch, batch_idx):
        self.log_dict({self.loss_name: (self(batch[0]) - batch[1]).square().mean(), "val_acc": 0.25})


class ReturnsLoss(LogsAccuracy):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        return (self(batch[0]) - batch[1]).square().mean()


class ReturnsOtherLoss(ReturnsLoss):
    loss_name = "val/Loss"


@pytest.mark.parametrize("module", [LogsAccuracy, ReturnsLoss, ReturnsOtherLoss])
def test_a_larger_measure_is_not_a_loss(module):
    start = LightningTask(module(), Data(), better="larger").start(0)
    assert start.validate(start.model, "choose") == 0.25
    start = LightningTask(LogsAccuracy(), Data()).start(0)
    assert start.validate(start.model, "choose") != 0.25


class OnlyLoss(Lit):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self(batch[0]) - batch[1]).square().mean())


def test_a_larger_loss_is_refused():
    start = LightningTask(OnlyLoss(), Data(), better="larger").start(0)
    with pytest.raises(UsageError, match="logs only val_loss, of which larger is not better"):
        start.validate(start.model, "choose")


class Manual(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Several(Lit):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=1.0) for _ in range(2)]


class NoLoss(Lit):
    def training_step(self, batch):
        self(batch[0])


class NeedsTrainer(Lit):
    def training_step(self, batch):
        return self.trainer.global_step * self(batch[0]).mean()


class Broken(Lit):
    def configure_optimizers(self):
        raise KeyError("lr")


class WarmsUp(Lit):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / steps)]


class Cycles(Lit):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)]


@pytest.mark.parametrize("kind", [WarmsUp, Cycles])
def test_the_learning_rate_of_a_lightning_module_is_the_peak_of_its_schedule(kind):
    module = kind()
    task = LightningTask(module, Data())
    assert task.learning_rate == 0.2
    start = task.start(0)
    assert {group["lr"] for group in start.optimizer(start.model, 0.5).param_groups} == {0.5}
    with pytest.raises(RuntimeError, match="not attached"):
        _ = module.trainer


def test_validation_on_the_training_data_is_noted():
    class Same(Data):
        def __init__(self):
            super().__init__()
            self.samples = samples()

        def train_dataloader(self):
            return DataLoader(self.samples, batch_size=8)

        def test_dataloader(self):
            return DataLoader(self.samples, batch_size=8)

    assert "Validation uses the training data" in " ".join(LightningTask(WithTestStep(), Same()).notes)
    assert "Validation uses" not in " ".join(LightningTask(WithTestStep(), DataWithTest()).notes)


class Unvalidated(lightning.LightningDataModule):
    train_dataloader = Data.train_dataloader


@pytest.mark.parametrize(
    ("module", "data", "complaint"),
    [
        (Manual, Data, "Manual optimizes manually"),
        (Several, Data, "must return one optimizer, got 2 of SGD, SGD"),
        (Lit, Unvalidated, "Lit needs validation_step, and Unvalidated val_dataloader"),
        (NoLoss, Data, "training_step of NoLoss returned no loss"),
        (NeedsTrainer, Data, "training_step of NeedsTrainer failed"),
        (Broken, Data, "configure_optimizers of Broken failed .KeyError: 'lr'.: the comparison has no trainer"),
    ],
)
def test_a_lightning_module_that_cannot_be_compared_is_one_sentence(module, data, complaint):
    with pytest.raises(UsageError, match=complaint):
        trained(LightningTask(module(), data()), "as-is", steps=1)


transformers = pytest.importorskip("transformers")


def trainer(folder, kind=transformers.Trainer, **options):
    """A Trainer of a small GPT-2."""
    ids = torch.randint(VOCABULARY, (16, 9), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, loss_type="ForCausalLM", bos_token_id=0, eos_token_id=0, **sizes
    )
    settings = {"report_to": [], "use_cpu": True, "per_device_train_batch_size": 4, "learning_rate": 2e-3}
    args = transformers.TrainingArguments(str(folder), **settings)
    options = {
        "model": transformers.GPT2LMHeadModel(config),
        "train_dataset": data,
        "eval_dataset": data[:5],
        **options,
    }
    return kind(args=args, **options)


def test_a_trainer_is_trained_with_its_loss_and_optimizer(tmp_path):
    given = trainer(tmp_path)
    before = copy.deepcopy(given.model.state_dict())
    task = as_task(given)
    assert isinstance(task, TrainerTask)
    assert (task.learning_rate, task.better) == (2e-3, "smaller")
    start, model = edited(task, "peri")
    again, other = task.start(0), task.start(1)
    assert torch.equal(first_batch(start)["input_ids"], first_batch(again)["input_ids"])
    assert not torch.equal(first_batch(start)["input_ids"], first_batch(other)["input_ids"])
    assert not torch.equal(again.model.transformer.wte.weight, other.model.transformer.wte.weight)
    optimizer = start.optimizer(model, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    measures = trained(task, "as-is", steps=8, learning_rate=1e-2)
    assert measures["report"] != measures["choose"] < 3.0
    assert given.optimizer is None
    assert given.args.learning_rate == 2e-3
    assert all(torch.equal(weight, before[name]) for name, weight in given.model.state_dict().items())


def test_the_learning_rate_of_an_optimizer_class_of_a_trainer_is_searched(tmp_path):
    task = TrainerTask(trainer(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1})))
    assert task.learning_rate == 0.1
    start = task.start(0)
    assert {group["lr"] for group in start.optimizer(start.model, 0.5).param_groups} == {0.5}


def test_an_optimizer_object_of_a_trainer_is_refused_and_its_own_is_not(tmp_path):
    def with_optimizer(kind, **settings):
        model = trainer(tmp_path).model
        return trainer(tmp_path, model=model, optimizers=(kind(model.parameters(), **settings), None))

    with pytest.raises(UsageError, match="was given an optimizer of class SGD, which belongs to one model"):
        TrainerTask(with_optimizer(torch.optim.SGD, lr=0.1))
    with pytest.raises(UsageError, match="was given an optimizer of class AdamW"):
        TrainerTask(with_optimizer(torch.optim.AdamW, betas=(0.8, 0.9)))
    used = trainer(tmp_path)
    used.create_optimizer()
    TrainerTask(used)


def test_evaluation_on_the_training_data_is_noted(tmp_path):
    given = trainer(tmp_path)
    assert not any("eval_dataset is train_dataset" in note for note in TrainerTask(given).notes)
    given.eval_dataset = given.train_dataset
    assert any("eval_dataset is train_dataset" in note for note in TrainerTask(given).notes)


@pytest.mark.parametrize("decays_norms", [False, True])
def test_norms_of_an_edit_have_the_weight_decay_of_the_trainers_norms(decays_norms, tmp_path):
    class Decaying(transformers.Trainer):
        def get_decay_parameter_names(self, model):
            return [name for name, _ in model.named_parameters() if ".ln_" in name and not name.endswith("bias")]

    given = trainer(tmp_path, Decaying if decays_norms else transformers.Trainer)
    given.args.weight_decay = 0.1
    start, model = edited(as_task(given), "norm:rms+layerscale")
    groups = {group["weight_decay"]: set(group["params"]) for group in start.optimizer(model, 0.5).param_groups}
    layer = model.transformer.h[0]
    vectors = {layer.ln_1.weight, layer.ln_2.weight, layer.placed.attn_scale.weight, layer.placed.mlp_scale.weight}
    assert vectors <= groups[0.1 if decays_norms else 0.0]
    assert (model.transformer.wte.weight in groups[0.1]) != decays_norms


def test_norms_of_an_edit_do_not_have_the_weight_decay_of_other_vectors(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    model = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(mlp_ratio=2, **sizes))
    data = [{"pixel_values": torch.rand(3, 8, 8), "labels": 0}] * 8
    given = trainer(tmp_path, model=model, train_dataset=data, eval_dataset=data)
    given.args.weight_decay = 0.1
    start, model = edited(as_task(given), "norm:rms")
    groups = {group["weight_decay"]: set(group["params"]) for group in start.optimizer(model, 0.5).param_groups}
    layer = model.dinov2.encoder.layer[0]
    assert {layer.norm1.weight, layer.norm2.weight} <= groups[0.0]
    assert layer.layer_scale1.lambda1 in groups[0.1]


def test_a_fresh_model_of_a_trainer_has_its_dtype_its_frozen_parameters_and_its_edits(tmp_path):
    given = trainer(tmp_path).model.bfloat16()
    given.transformer.wpe.requires_grad_(False)
    fresh = fresh_model(given).model
    assert {parameter.dtype for parameter in fresh.parameters()} == {torch.bfloat16}
    assert fresh.lm_head.weight is fresh.transformer.wte.weight
    assert not torch.equal(fresh.transformer.wte.weight, given.transformer.wte.weight)
    assert not fresh.transformer.wpe.weight.requires_grad
    assert torch.equal(fresh.transformer.wpe.weight, given.transformer.wpe.weight)
    given.transformer.ln_f = nn.RMSNorm(8)
    changed = fresh_model(given)
    assert isinstance(changed.model.transformer.ln_f, nn.RMSNorm)
    assert changed.note.startswith("Each seed copies the model")


def test_a_larger_loss_of_a_trainer_is_not_better(tmp_path):
    with pytest.raises(UsageError, match="of the measure of Trainer of GPT2LMHeadModel, smaller is better: leave"):
        as_task(trainer(tmp_path), "larger")
    with pytest.raises(UsageError, match="returns a Trainer, whose loss is compared"):
        as_task(lambda seed: trainer(tmp_path), "larger").start(0)


def test_a_trainer_that_accumulates_gradients_is_noted(tmp_path):
    given = trainer(tmp_path)
    assert not any("accumulation" in note for note in TrainerTask(given).notes)
    given.args.gradient_accumulation_steps = 4
    assert "one batch of 4 samples: gradient_accumulation_steps=4 is not used." in TrainerTask(given).notes[-1]


class FaintTrainer(transformers.Trainer):
    """Its loss has gradients that float16 rounds to zero."""

    def compute_loss(self, *args, **kwargs):
        return 1e-6 * super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("clip", [None, 1e-9])
def test_a_trainer_in_float16_scales_its_loss(tmp_path, clip):
    gradients = []
    for fp16 in (False, True):
        given = trainer(tmp_path, FaintTrainer)
        given.model.eval()  # no dropout
        given.args.fp16, given.args.max_grad_norm = fp16, clip
        start = TrainerTask(given, "weights").start(0)
        start.model.load_state_dict(_spread_weights(start.model))
        optimizer = start.optimizer(start.model, 1e-3)
        before = copy.deepcopy(start.model.state_dict())
        take_step(start, optimizer, first_batch(start))
        assert not torch.equal(start.model.transformer.wte.weight, before["transformer.wte.weight"])
        gradients.append(torch.cat([weight.grad.flatten() for weight in start.model.parameters()]))
    exact, rounded = gradients
    # float16 has 11 significant bits; errors of the few layers add up.
    assert torch.linalg.vector_norm(rounded - exact) < 2**-8 * torch.linalg.vector_norm(exact)
    assert clip is None or torch.linalg.vector_norm(rounded) < 1.001 * clip


def test_a_step_without_a_finite_gradient_is_skipped_in_float16(tmp_path):
    given = trainer(tmp_path)
    given.args.fp16 = True
    start = TrainerTask(given).start(0)
    loss, batch = start.loss, first_batch(start)
    start.loss = lambda model, batch: torch.inf * loss(model, batch)
    before = copy.deepcopy(start.model.state_dict())
    optimizer = start.optimizer(start.model, 1e-3)
    take_step(start, optimizer, batch)
    assert all(torch.equal(value, before[name]) for name, value in start.model.state_dict().items())
    assert start.scaler.get_scale() == 2.0**15  # halved


def _spread_weights(model):
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(value.shape, generator=generator) for name, value in model.state_dict().items()}


def test_the_models_of_a_trainer(tmp_path):
    given = trainer(tmp_path)
    copied = TrainerTask(given, "weights").start(5).model
    assert torch.equal(copied.transformer.wte.weight, given.model.transformer.wte.weight)
    init = trainer(tmp_path, model=None, model_init=lambda: copy.deepcopy(given.model))
    task = TrainerTask(init)
    assert task.notes[0] == "Each seed builds the model with model_init."
    made = FactoryTask(lambda seed: given)
    assert torch.equal(made.start(1).model.transformer.wte.weight, given.model.transformer.wte.weight)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"eval_dataset": None}, "no eval_dataset"),
        ({"train_dataset": None}, "no train_dataset"),
        ({"eval_dataset": [{}]}, "cannot be split in two"),
        ({"eval_dataset": {"one": [{}], "report": [{}]}}, "keys one, report: name them choose and report"),
    ],
)
def test_a_trainer_without_data_is_one_sentence(options, complaint, tmp_path):
    with pytest.raises(UsageError, match=complaint):
        TrainerTask(trainer(tmp_path, **options))
