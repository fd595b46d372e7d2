"""Notes on what a search compared."""

import pytest

from taglio.errors import BadOption
from taglio.flow import notes
from taglio.notes import Kind, Note
from taglio.runtimes import openvino
from taglio.search.ledger import Measurement, Variant
from taglio.search.places import Places

REASON = "OpenVINO is not installed here: pip install 'taglio[openvino]'"


def refuse() -> str:
    raise BadOption(REASON)


@pytest.mark.parametrize("installed", [True, False])
def test_a_runtime_that_is_not_installed_is_offered(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "version", (lambda: "2026.4.0") if installed else refuse)
    rows = [Measurement(Variant("onnxruntime", "float32")), Measurement(Variant("openvino", "float32"), refused=REASON)]
    offered = [] if installed else [Note(Kind.NOT_INSTALLED, f"openvino: {REASON}")]
    assert notes._not_installed(Places(tuple(rows))) == offered
