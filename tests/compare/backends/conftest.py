"""A small trained network that every back end is asked for; run where `make test-backends` built environments."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.compare.environments import find
from taglio.embedded import digits_data
from tests.end_to_end.command import taglio
from tests.models import digits_model

ASKED = os.environ.get("TAGLIO_TEST_BACKENDS", "").split()


def need(*environments: str) -> None:
    """Skip where an environment was not asked for; one that was asked for and is not there fails its test."""
    missing = [name for name in environments if name not in ASKED]
    if missing:
        pytest.skip(f"needs the environment of {', '.join(missing)}: run make test-backends")


def compare(out: Path, model: Path, data: Path, backends: str, *options: object) -> Any:
    """The object that `taglio compare --json` prints."""
    arguments = ["--data", data, "--backends", backends, "--effort", "0.01", "--row-limit", "240", "-o", out, "--json"]
    return taglio("compare", model, *arguments, *options).json()


def rows(result: Any, backend: str) -> dict[str, Any]:
    """A back end's rows by their key."""
    return {row["wanted"]["id"].partition("/")[2]: row for row in result["rows"] if row["wanted"]["backend"] == backend}


def sound(found: dict[str, Any], exact: float = 1e-3) -> None:
    """No row is blank, the float row equals the original, and a row that is int8 says which operators are."""
    for name, row in found.items():
        assert (row["latency"] is not None) == (row["status"] == "measured"), name
        assert bool(row["reason"]) == (row["status"] != "measured"), name
    assert found["float32"]["status"] == "measured", found["float32"]["reason"]
    assert found["float32"]["checked"]["error_to_original"] < exact


def saturating(row: Any) -> bool:
    """Whether the row says that this processor's int8 sums may saturate in it: its values mean nothing then."""
    return any("saturate" in note for note in row["checked"]["notes"])


def told(found: dict[str, Any], measured: tuple[str, ...], absent: dict[str, str]) -> None:
    """Every row of `measured` ran; every row of `absent` did not, and its reason holds the words given."""
    for key in measured:
        assert found[key]["status"] == "measured", (key, shown(found[key]))
    for key, words in absent.items():
        assert found[key]["status"] != "measured", key
        assert words in found[key]["reason"], (key, shown(found[key]))


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The embedded digits model with 24 of its pictures."""
    path = tmp_path_factory.mktemp("few") / "digits.npz"
    with np.load(digits_data()) as arrays:
        np.savez(path, **{name: arrays[name][:24] for name in arrays.files})
    return digits_model(), path


@pytest.fixture(scope="session")
def keras_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small Keras network with a batch normalisation and a skip, saved as the older Keras does, and data for it."""
    need("litert", "qkeras")
    folder = tmp_path_factory.mktemp("keras")
    code = f"""
import tf_keras as keras
from tf_keras import layers
keras.utils.set_random_seed(0)
x = inputs = keras.Input((16, 16, 3))
x = layers.Conv2D(8, 3, padding="same", name="first")(x)
x = layers.BatchNormalization(name="norm")(x)
x = y = layers.Activation("relu", name="relu")(x)
x = layers.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
x = layers.Add(name="skip")([x, y])
x = layers.GlobalAveragePooling2D(name="pool")(x)
model = keras.Model(inputs, layers.Dense(5, name="dense")(x))
model.save("{folder / "model.h5"}")
"""
    interpreter = find("qkeras").interpreter
    assert interpreter is not None
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-500:]
    data = folder / "data.npy"
    np.save(data, np.random.default_rng(0).standard_normal((10, 16, 16, 3)).astype(np.float32))
    return folder / "model.h5", data


def shown(row: Any) -> str:
    """A row for an assertion's message."""
    return json.dumps({"status": row["status"], "reason": row["reason"]})
