"""Train the embedded digits model and write it, with its held-out images, for the package to ship.

What it is: a reproducible recipe for `digits.onnx` (a small residual CNN, image [1, 1, 32, 32] to logits
[1, 10]) and `digits.npz` (images that training never saw). The net is built to be worth planning for, not to
be the smallest that works: its three stages have different block shapes (plain residual with ReLU, residual
with SiLU, inverted bottleneck with depthwise convolution), which int8 speeds up and disturbs differently. The
channels of the bottlenecks are scaled apart, as those of mobile networks are once batch normalisation is
folded (`spread`): float answers stay the same bits, and int8 loses some of them.

What it is not: part of the installed package, a general trainer, or a claim about digit recognition. It needs
PyTorch and scikit-learn, which taglio itself does not. Nothing is chosen on the held-out images: the epoch
that is kept is chosen on a separate validation split.

    python training/digits.py --out src/taglio/embedded --even tests/digits.onnx --epochs 16 --seed 0
"""

from __future__ import annotations

import argparse
import copy
import io
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

HELD_OUT = 400
VALIDATION = 160
BATCH = 32
PEAK_LEARNING_RATE = 4e-3
WEIGHT_DECAY = 5e-3
PATIENCE = 6
MIN_ACCURACY = 0.985
MAX_LOGIT_DIFFERENCE = 1e-3
OPSET = 17
# Channels differ up to 512 times, twice int8's range. Of four seeds the third loses least in int8.
SPREAD_BITS, SPREAD_SEED = 9, 2


@dataclass(frozen=True, slots=True)
class Split:
    """Images, float32 [N, 1, 32, 32] in 0..1, and labels, int64 [N]."""

    image: Tensor
    label: Tensor


@dataclass(frozen=True, slots=True)
class Digits:
    """The three disjoint, class-balanced parts of the data set."""

    train: Split
    validation: Split
    held_out: Split


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch normalisation (folded into the convolution on export), activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] | None = nn.ReLU,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride=stride, activation=activation)
        self.second = ConvNorm(outputs, outputs, 3, activation=None)
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = (
            nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride=stride, activation=None)
        )
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.second(self.first(x)) + self.shortcut(x))
        return y


class InvertedBottleneck(nn.Module):
    """1x1 expansion, 3x3 depthwise, linear 1x1 projection; a shortcut where the shape is kept."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.expand = ConvNorm(inputs, hidden, 1)
        self.depthwise = ConvNorm(hidden, hidden, 3, stride=stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs, 1, activation=None)
        self.keeps_shape = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.keeps_shape else y


class DigitsNet(nn.Module):
    """Image [N, 1, 32, 32] to logits [N, 10]: 23 convolutions, one Gemm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 48, 3)
        self.fine = nn.Sequential(  # 48 x 32 x 32
            Residual(48, 48, stride=1, activation=nn.ReLU),
            Residual(48, 48, stride=1, activation=nn.ReLU),
            Residual(48, 48, stride=1, activation=nn.ReLU),
            Residual(48, 48, stride=1, activation=nn.ReLU),
        )
        self.middle = nn.Sequential(  # 64 x 16 x 16
            Residual(48, 64, stride=2, activation=nn.SiLU),
            Residual(64, 64, stride=1, activation=nn.SiLU),
        )
        self.coarse = nn.Sequential(  # 80 x 8 x 8
            InvertedBottleneck(64, 128, 80, stride=2),
            InvertedBottleneck(80, 128, 80, stride=1),
            InvertedBottleneck(80, 128, 80, stride=1),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(80, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.coarse(self.middle(self.fine(self.stem(image))))
        logits: Tensor = self.classify(self.pool(x).flatten(1))
        return logits


def read_digits(seed: int) -> Digits:
    """Split scikit-learn's 1,797 digits by class and enlarge them from 8x8 to 32x32.

    Pixels are integers 0..16 and the bilinear weights at a factor of four are multiples of 1/64, so every
    value is an exact multiple of 1/1024: nothing is rounded, and the file compresses well.
    """
    bunch = load_digits()
    small = torch.from_numpy(bunch.images.astype(np.float32) / 16.0).unsqueeze(1)
    image = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    label = torch.from_numpy(bunch.target.astype(np.int64))
    rest, held_out = train_test_split(
        np.arange(len(label)), test_size=HELD_OUT, stratify=label.numpy(), random_state=seed
    )
    train, validation = train_test_split(rest, test_size=VALIDATION, stratify=label.numpy()[rest], random_state=seed)

    by_class = [held_out[label.numpy()[held_out] == digit] for digit in range(10)]
    rank = np.concatenate([np.arange(len(members)) for members in by_class])
    held_out = np.concatenate(by_class)[np.argsort(rank, kind="stable")]  # any leading slice is balanced

    def part(index: NDArray[np.int64]) -> Split:
        return Split(image[index].contiguous(), label[index].contiguous())

    return Digits(part(train), part(validation), part(held_out))


def shift(image: Tensor, generator: torch.Generator, limit: int = 3) -> Tensor:
    """Move each image by up to `limit` pixels both ways, filling with zeros."""
    padded = F.pad(image, (limit, limit, limit, limit))
    offset = torch.randint(0, 2 * limit + 1, (len(image), 2), generator=generator).tolist()
    return torch.stack([p[:, dy : dy + 32, dx : dx + 32] for p, (dy, dx) in zip(padded, offset, strict=True)])


def evaluate(net: nn.Module, split: Split) -> tuple[float, float]:
    """Mean cross-entropy and accuracy, with the net left in evaluation mode."""
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(part) for part in torch.chunk(split.image, 4)])
    loss = F.cross_entropy(logits, split.label).item()
    return loss, (logits.argmax(1) == split.label).float().mean().item()


def train(digits: Digits, epochs: int, seed: int) -> DigitsNet:
    """Train with AdamW and a one-cycle rate; stop early; keep the epoch with the least validation loss."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=WEIGHT_DECAY)
    steps = len(digits.train.label) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps)
    best_loss, best_epoch, best_state = float("inf"), 0, copy.deepcopy(net.state_dict())
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        net.train()
        total = 0.0
        order = torch.randperm(len(digits.train.label), generator=generator)
        for step in range(steps):
            pick = order[step * BATCH : (step + 1) * BATCH]
            logits = net(shift(digits.train.image[pick], generator))
            loss = F.cross_entropy(logits, digits.train.label[pick], label_smoothing=0.05)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        validation_loss, validation_accuracy = evaluate(net, digits.validation)
        print(
            f"epoch {epoch:2d}/{epochs}  train loss {total / steps:.4f}  "
            f"validation loss {validation_loss:.4f}  accuracy {validation_accuracy:.2%}  "
            f"{time.perf_counter() - start:.1f} s",
            flush=True,
        )
        if validation_loss < best_loss:
            best_loss, best_epoch, best_state = validation_loss, epoch, copy.deepcopy(net.state_dict())
        elif epoch - best_epoch >= PATIENCE:
            print(f"stopped: no better validation loss for {PATIENCE} epochs")
            break
    print(f"kept epoch {best_epoch}")
    net.load_state_dict(best_state)
    net.eval()
    return net


def export(net: DigitsNet) -> bytes:
    """Give the net as one checked ONNX file with batch normalisation folded and every weight inside.

    The TorchScript exporter is used because it folds batch normalisation and leaves plain Conv, Relu,
    Sigmoid, Mul and Add nodes named after the modules.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "digits.onnx"
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            net,
            (torch.zeros(1, 1, 32, 32),),
            file,
            input_names=["image"],
            output_names=["logits"],
            opset_version=OPSET,
            do_constant_folding=True,
            dynamo=False,
        )
        model = onnx.load(file)
    model.graph.name = "digits"
    onnx.helper.set_model_props(model, {"data": "UCI Optical Recognition of Handwritten Digits, CC BY 4.0"})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def spread(model: bytes) -> bytes:
    """Scale what the depthwise convolutions read by random powers of two per channel, and their weights back.

    Between two convolutions with a ReLU, scaling a channel by s > 0 and dividing the weights that read it by s changes
    no answer; with powers of two not one bit in float. A tensor in int8 has one scale for all its channels, so the
    small ones are rounded away. Folding batch normalisation leaves channels like that in MobileNets (Nagel et al.,
    "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, figure 2).
    """
    rng = np.random.default_rng(SPREAD_SEED)
    proto = onnx.load_from_string(model)
    weights = {each.name: each for each in proto.graph.initializer}
    writers = {name: node for node in proto.graph.node for name in node.output}

    def scale(name: str, factor: NDArray[Any]) -> None:
        scaled = onnx.numpy_helper.to_array(weights[name]) * factor
        weights[name].CopyFrom(onnx.numpy_helper.from_array(scaled, name))

    for reader in proto.graph.node:
        if reader.op_type != "Conv" or "/depthwise/" not in reader.name:
            continue
        writer = writers[writers[reader.input[0]].input[0]]  # behind the ReLU
        _, weight, bias = writer.input
        channels = weights[weight].dims[0]
        factor = (2.0 ** -rng.integers(0, SPREAD_BITS + 1, channels)).astype(np.float32)
        scale(weight, factor[:, None, None, None])
        scale(bias, factor)
        scale(reader.input[1], 1 / factor[:, None, None, None])
    return bytes(proto.SerializeToString(deterministic=True))


def check(net: DigitsNet, model: bytes, held_out: Split) -> None:
    """Compare PyTorch with ONNX Runtime on every held-out image.

    Raises SystemExit if an answer differs, a logit differs by more than 1e-3, or accuracy is under 98.5 %.
    """
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    answers = [session.run(None, {"image": image[None]})[0] for image in held_out.image.numpy()]
    exported = np.concatenate(answers)
    with torch.no_grad():
        original = torch.cat([net(part) for part in torch.chunk(held_out.image, 4)]).numpy()
    label = held_out.label.numpy()
    accuracy_torch = float((original.argmax(1) == label).mean())
    accuracy_ort = float((exported.argmax(1) == label).mean())
    agree = int((original.argmax(1) == exported.argmax(1)).sum())
    difference = float(np.abs(original - exported).max())
    print(
        f"held-out accuracy: torch {accuracy_torch:.2%}, ONNX Runtime {accuracy_ort:.2%}; "
        f"same answer on {agree} of {len(label)}; largest logit difference {difference:.1e}"
    )
    if agree != len(label) or difference > MAX_LOGIT_DIFFERENCE:
        raise SystemExit("nothing written: PyTorch and ONNX Runtime disagree")
    if accuracy_ort < MIN_ACCURACY:
        raise SystemExit(f"nothing written: accuracy {accuracy_ort:.2%} < {MIN_ACCURACY:.1%}; add epochs")


def pack(split: Split) -> bytes:
    """Give the split as a compressed .npz with keys `image` and `label`."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, image=split.image.numpy(), label=split.label.numpy())
    return buffer.getvalue()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file beside `path`, then move it into place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"wrote {path.name}: {len(content):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and export the embedded digits model.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for both files")
    parser.add_argument("--even", type=Path, metavar="FILE", help="also write the network before `spread`")
    parser.add_argument("--epochs", type=int, default=16, metavar="N", help="most epochs (default 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of split and weights (default 0)")
    parser.add_argument("--threads", type=int, default=2, metavar="T", help="PyTorch threads (default 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)

    digits = read_digits(arguments.seed)
    net = train(digits, arguments.epochs, arguments.seed)
    even = export(net)
    model = spread(even)
    check(net, model, digits.held_out)

    arguments.out.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out / "digits.onnx", model)
    if arguments.even is not None:
        write_atomically(arguments.even, even)
    write_atomically(arguments.out / "digits.npz", pack(digits.held_out))


if __name__ == "__main__":
    main()
