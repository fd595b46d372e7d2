"""Models of other frameworks, small and with random weights, opened as taglio opens ONNX; see conftest.py."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.compare import convert
from taglio.compare.environments import find
from taglio.errors import BadModel
from taglio.flow.opening import Model
from tests.compare.backends.conftest import need
from tests.data.test_sources import pictures, sound, tokenizer, written

KERAS = """
import numpy as np, tensorflow as tf, {library} as keras
from {library} import layers
keras.utils.set_random_seed(0)
x = inputs = keras.Input((16, 16, 3))
x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
x = layers.DepthwiseConv2D(3, padding="same")(x)
model = keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))
"""
TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 5)
    def forward(self, image, scale):
        return self.head(torch.relu(self.conv(image * scale[:, :, None, None])).mean((2, 3)))
def build():
    return Net().eval()
"""
HUGGING = """
import sys
sys.modules["torchvision"] = None  # not needed, and not loaded where it was built for another PyTorch
import transformers as t, torch
torch.manual_seed(0)
small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "cache", lambda: tmp_path / "cache" / "converted")


def make(backend: str, code: str) -> None:
    """Run code in the environment of a back end."""
    interpreter = find(backend).interpreter
    assert interpreter is not None
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-800:]


def opened(model: Path | str, data: Any, kind: str, **settings: Any) -> Model:
    """The model, and that a line says what it was and how near it is to the original."""
    figures = Model(model, data, threads=1, **settings)
    told = [note.text for note in figures.notes if "was converted to ONNX by" in note.text]
    assert len(told) == 1 and f"({kind})" in told[0], figures.notes
    assert told[0].endswith("equal the original's") or float(told[0].rpartition(" by ")[2].split()[0]) < 1e-5, told
    return figures


IMAGES = np.random.default_rng(0).standard_normal((6, 16, 16, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("library", "save", "kind"),
    [
        ("keras", "model.save('{path}/net.keras')", "Keras"),
        ("tf_keras", "model.save('{path}/net.h5')", "Keras"),  # Keras 3 refuses its DepthwiseConv2D
        ("keras", "model.export('{path}/net', verbose=False)", "a SavedModel"),
        ("keras", "open('{path}/net.tflite', 'wb').write(tf.lite.TFLiteConverter.from_keras_model(model).convert())",
         "TFLite"),
        ("keras", "keras.Model(inputs, dict(z=model(inputs), a=layers.Flatten()(inputs))).save('{path}/net.keras')",
         "Keras"),
    ],
    ids=["keras", "keras 2", "saved model", "tflite", "named outputs"],
)  # fmt: skip
def test_models_of_tensorflow(tmp_path: Path, library: str, save: str, kind: str) -> None:
    need("litert")
    make("keras", KERAS.format(library=library) + save.format(path=tmp_path))
    path = next(tmp_path.glob("net*"))
    figures = opened(path, IMAGES, kind)
    assert [spec.shape and spec.shape[1:] for spec in figures.inputs] == [(16, 16, 3)]
    assert figures.data.held_out.samples[0][figures.inputs[0].name].shape == (1, 16, 16, 3)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("torch")
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(TORCH, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, '{folder}'); import nets\n"
    examples = "(torch.zeros(1, 3, 9, 9), torch.ones(1, 3))"
    make(
        "pytorch",
        f"{code}import torch\ntorch.export.save(torch.export.export(nets.build(), {examples}), '{folder}/net.pt2')",
    )
    rng = np.random.default_rng(0)
    scale, image = rng.random((6, 3), np.float32), rng.standard_normal((6, 3, 9, 9)).astype(np.float32)
    np.savez(folder / "d.npz", scale=scale, image=image)  # not in the module's order
    return folder


@pytest.mark.parametrize("name", ["nets.py:build", "nets:build", "net.pt2"])
def test_models_of_pytorch(nets: Path, name: str) -> None:
    figures = opened(nets / name, nets / "d.npz", "PyTorch")
    assert [(spec.name, spec.shape) for spec in figures.inputs] == [("image", (1, 3, 9, 9)), ("scale", (1, 3))]


def test_a_module_opened_twice_is_the_same_model(nets: Path) -> None:
    one, other = (Model(nets / "nets:build", nets / "d.npz", threads=1).model.sha256 for _ in range(2))
    assert one == other


def test_a_module_whose_shape_nothing_says_is_refused(nets: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"does not say its input's shape: give data as .npz or .npy, or --shape"):
        Model(nets / "nets:build", pictures(tmp_path, a=2) / "a", threads=1)


def test_a_text_model_of_hugging_face(tmp_path: Path) -> None:
    need("torch")
    config = "t.BertConfig(vocab_size=9, max_position_embeddings=32, num_labels=3, **small)"
    make("huggingface", f"{HUGGING}t.BertForSequenceClassification({config}).save_pretrained('{tmp_path}/bert')")
    tokenizer(tmp_path / "bert", pad_token="[PAD]")
    path = written(
        tmp_path / "t.csv", "text,label\n" + "".join(f"{'a b c '[: 2 + 2 * (i % 3)]},{i % 3}\n" for i in range(8))
    )
    figures = opened(tmp_path / "bert", path, "a Hugging Face model")
    assert [spec.name for spec in figures.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(spec.shape == ("batch", "sequence") for spec in figures.inputs)
    assert (figures.outputs, figures.data.held_out.labels is not None) == (("logits",), True)


def test_an_image_and_a_speech_model_of_hugging_face(tmp_path: Path) -> None:
    need("torch")
    image = "t.ViTConfig(image_size=8, patch_size=4, num_labels=3, **small)"
    speech = (
        "t.Wav2Vec2Config(vocab_size=7, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), "
        "num_conv_pos_embeddings=8, num_feat_extract_layers=2, num_conv_pos_embedding_groups=2, **small)"
    )
    make(
        "huggingface",
        f"{HUGGING}t.ViTForImageClassification({image}).save_pretrained('{tmp_path}/vit')\n"
        f"t.Wav2Vec2ForCTC({speech}).save_pretrained('{tmp_path}/wav')\n"
        f"t.Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=True).save_pretrained('{tmp_path}/wav')",
    )
    figures = opened(tmp_path / "vit", pictures(tmp_path / "p", cat=2, dog=2), "a Hugging Face model")
    assert (figures.inputs[0].shape, figures.outputs) == (("batch", 3, 8, 8), ("logits",))
    for index in range(4):
        sound(tmp_path / "w" / f"{index}.wav", np.random.default_rng(index).integers(-9000, 9000, 800 + 40 * index))
    figures = opened(tmp_path / "wav", tmp_path / "w", "a Hugging Face model")
    assert figures.inputs[0].shape == ("batch", "length")
    assert any("rate=8000,normalize" in note.text for note in figures.notes)


def test_a_model_that_generates_with_an_encoder_is_refused(tmp_path: Path) -> None:
    need("torch")
    make("huggingface", f"{HUGGING}t.T5Config().save_pretrained('{tmp_path}/t5')")
    with pytest.raises(BadModel, match="t5 is an encoder and a decoder in a loop: export its parts"):
        convert.as_onnx(tmp_path / "t5", {}, 1)
