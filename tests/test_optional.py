"""Packages that only some users have."""

import importlib

import pytest

from taglio.errors import BadOption
from taglio.optional import optional


def test_a_missing_package_is_said() -> None:
    with pytest.raises(BadOption, match="pip install nothing"):
        optional("no_such_package", "pip install nothing")


def test_ctrl_c_while_a_compiled_module_is_loaded_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO's makes an ImportError of it: the command went on without OpenVINO."""

    def stopped(_: str) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt(15)

    monkeypatch.setattr(importlib, "import_module", stopped)
    with pytest.raises(KeyboardInterrupt, match="15"):
        optional("openvino", "pip install openvino")
