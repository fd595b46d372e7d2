"""A small trained network that every back end is asked for; run where `make test-backends` built environments."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.compare.environments import find
from tests.end_to_end.command import Case, taglio

ASKED = os.environ.get("TAGLIO_TEST_BACKENDS", "").split()


def need(*environments: str) -> None:
    """Skip where an environment was not asked for; one that was asked for and is not there fails its test."""
    missing = [name for name in environments if name not in ASKED]
    if missing:
        pytest.skip(f"needs the environment of {', '.join(missing)}: run make test-backends")


def compare(out: Path, case: Case, backends: str, *options: object) -> Any:
    """The object that `taglio compare --json` prints."""
    how = ("--backends", backends, "--effort", "0.01", "--row-limit", "240", "-o", out, "--json")
    return taglio("compare", *case.arguments(), *how, *options).json()


def rows(result: Any, backend: str) -> dict[str, Any]:
    """A back end's rows by their key."""
    return {row["wanted"]["id"].partition("/")[2]: row for row in result["rows"] if row["wanted"]["backend"] == backend}


def sound(figures: dict[str, Any], exact: float = 1e-3) -> None:
    """No row is blank, the float row equals the original, and a row that is int8 says which operators are."""
    for name, row in figures.items():
        assert (row["latency"] is not None) == (row["status"] == "measured"), name
        assert bool(row["reason"]) == (row["status"] != "measured"), name
    assert figures["float32"]["status"] == "measured", figures["float32"]["reason"]
    assert figures["float32"]["checked"]["error_to_original"] < exact


def saturating(row: Any) -> bool:
    """Whether the row says that this processor's int8 sums may saturate in it: its values mean nothing then."""
    return any("saturate" in note for note in row["checked"]["notes"])


def measured(figures: dict[str, Any], *keys: str) -> None:
    """These rows ran."""
    for key in keys:
        assert figures[key]["status"] == "measured", (key, figures[key]["reason"])


@pytest.fixture(scope="session")
def keras_model(tmp_path_factory: pytest.TempPathFactory) -> Case:
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
    return Case(folder / "model.h5", data)
