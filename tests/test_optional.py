"""Packages that only some users have."""

import importlib
import signal
from contextlib import suppress

import pytest

from taglio.errors import BadOption
from taglio.optional import optional


def test_a_missing_package_is_said() -> None:
    with pytest.raises(BadOption, match="pip install nothing"):
        optional("no_such_package", "pip install nothing")


@pytest.mark.parametrize("missing", [True, False])
def test_ctrl_c_while_a_package_is_loaded_is_neither_dropped_nor_a_missing_package(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO's modules made an ImportError of it, and the command went on without OpenVINO."""

    def stopped(_: str) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if missing:
            raise ImportError("initialization failed")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(importlib, "import_module", stopped)
    with pytest.raises(KeyboardInterrupt):
        optional("openvino", "pip install openvino")
    assert signal.getsignal(signal.SIGINT) is before
