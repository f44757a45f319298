"""The signals callback in Hugging Face's Trainer, in Lightning's, and in a plain loop."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import normplace as npl

STEPS, EVERY = 5, 2


def loss(out):
    return out.square().mean()


class Small(nn.Module):
    """A network with an output norm, called as Hugging Face calls its models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x, labels=None):
        out = x + self.norm(self.linear(x))
        return {"loss": (out - labels).square().mean(), "logits": out} if labels is not None else out


def rows():
    torch.manual_seed(0)
    return [{"x": torch.randn(4), "labels": torch.randn(4)} for _ in range(2 * STEPS)]


def tensorboard_tags(folder):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tags = {}
    for path in folder.rglob("events.out.tfevents.*"):
        events = reading.EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            tags.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    return tags


def test_scalars_are_flat_and_name_the_depth():
    found = npl.signals(Small(), torch.randn(3, 4), loss)
    scalars = found.scalars()
    assert scalars["normplace/variance/depth_01"] == found.depths[1].variance
    assert scalars["normplace/effective_lr/depth_01"] == found.depths[1].effective_lr
    assert scalars["normplace/massive/depth_00"] == 0.0
    assert scalars["normplace/loss"] == found.loss
    assert "normplace/branch/depth_00" not in scalars
    assert {type(value) for value in scalars.values()} == {float}


def test_hugging_faces_trainer_measures_and_reports(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate, which is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    torch.manual_seed(0)
    batch = torch.randn(3, 4)
    watch = npl.SignalsCallback(batch, loss, every=EVERY)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, use_cpu=True,
        report_to=["tensorboard"], save_strategy="steps", save_steps=4, disable_tqdm=True, learning_rate=0.1,
    )  # fmt: skip
    trainer = transformers.Trainer(model=Small(), args=arguments, train_dataset=rows(), callbacks=[watch])
    trainer.train()
    assert [step for step, _ in watch.history] == [0, 2, 4]
    first, *_, last = (found for _, found in watch.history)
    assert first.depths[1].effective_lr > 0
    assert first.loss != last.loss
    tags = tensorboard_tags(tmp_path)
    seen = dict(tags["train/normplace/variance/depth_01"])
    assert seen == pytest.approx({step: found.depths[1].variance for step, found in watch.history}, rel=1e-6)
    assert len(tags["train/loss"]) == STEPS  # the trainer's own log is complete
    history = [entry for entry in trainer.state.log_history if "normplace/loss" in entry]
    assert [entry["step"] for entry in history] == [0, 2, 4]
    trainer.evaluate(rows()[:2])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of deprecated functions and small data loaders
def test_lightnings_trainer_measures_and_logs(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Small()

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, _):
            return self.network(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    watch = npl.SignalsCallback(torch.randn(3, 4), loss, every=EVERY)
    options = {
        "max_steps": STEPS, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
        "logger": lightning.loggers.TensorBoardLogger(str(tmp_path)), "default_root_dir": str(tmp_path),
        "accumulate_grad_batches": 2,
    }  # fmt: skip
    trainer = lightning.Trainer(callbacks=[watch], **options)
    loader = torch.utils.data.DataLoader(rows(), batch_size=1)
    trainer.fit(Module(), loader)
    assert [step for step, _ in watch.history] == [0, 2, 4]
    first, *_, last = (found for _, found in watch.history)
    assert first.depths[1].effective_lr > 0
    assert first.loss != last.loss
    seen = dict(tensorboard_tags(tmp_path)["normplace/effective_lr/depth_01"])
    assert seen == pytest.approx({step: found.depths[1].effective_lr for step, found in watch.history}, rel=1e-6)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    again = npl.SignalsCallback(watch.batch, loss, every=EVERY)
    options["max_steps"] = STEPS + 1
    lightning.Trainer(callbacks=[again], **options).fit(Module(), loader, ckpt_path=tmp_path / "saved.ckpt")
    assert [step for step, _ in again.history] == [6]


def test_a_plain_loop_logs_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    model, writer = Small(), SummaryWriter(str(tmp_path))
    watch = npl.SignalsCallback(torch.randn(3, 4), loss, every=EVERY)
    for step in range(3):
        if (found := watch(model, step)) is not None:
            for name, value in found.scalars().items():
                writer.add_scalar(name, value, step)
    writer.close()
    assert [step for step, _ in tensorboard_tags(tmp_path)["normplace/variance/depth_00"]] == [0, 2]


def test_it_copies_pickles_and_has_no_attributes_but_its_own():
    watch = npl.SignalsCallback(torch.ones(2, 4), every=3)
    assert copy.deepcopy(watch).every == pickle.loads(pickle.dumps(watch)).every == 3
    with pytest.raises(AttributeError, match="no attribute 'on_nothing'"):
        watch.on_nothing()


def test_no_framework_is_imported_with_the_callback():
    code = (
        "import sys, normplace as npl; npl.SignalsCallback(None);"
        "assert not {'transformers', 'lightning', 'pytorch_lightning'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_the_interval_is_a_positive_whole_number(every):
    with pytest.raises(npl.UsageError, match="every must be a whole number"):
        npl.SignalsCallback(None, every=every)
