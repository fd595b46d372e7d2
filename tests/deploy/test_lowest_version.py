"""The lowest version of ONNX Runtime, by its own table."""

from pathlib import Path

import pytest

from taglio.deploy.lowest_version import lowest_onnxruntime
from taglio.deploy.write import README
from taglio.runtimes import onnxruntime, openvino
from tests.deploy.test_delivery import delivered


@pytest.mark.parametrize(
    ("opsets", "ir_version", "lowest"),
    [
        ({"ai.onnx": 7}, 3, "1.3"),
        ({"ai.onnx": 13}, 7, "1.6"),
        ({"ai.onnx": 13}, 8, "1.9"),
        ({"ai.onnx": 17}, 8, "1.12"),
        ({"ai.onnx": 17, "ai.onnx.ml": 4}, 8, "1.17"),
        ({"ai.onnx": 19}, 9, "1.16"),
        ({"ai.onnx": 21}, 10, "1.18"),
    ],
)
def test_opsets_and_ir_version_decide(opsets: dict[str, int], ir_version: int, lowest: str) -> None:
    line = lowest_onnxruntime(opsets, ir_version, {})
    assert line == f"By ONNX Runtime's compatibility table, {lowest} is the lowest version that opens the file"


def test_what_the_table_lacks_is_not_guessed() -> None:
    for opsets, ir_version in (({"ai.onnx": 22}, 10), ({"ai.onnx": 21}, 11)):
        assert "which ends at 1.20, has no version" in lowest_onnxruntime(opsets, ir_version, {})
    line = lowest_onnxruntime({"ai.onnx": 17, "com.microsoft": 1}, 8, {"MatMulNBits": 3, "FusedConv": 1})
    assert line.startswith(
        "The file has 4 operators of ONNX Runtime's own (MatMulNBits, FusedConv), whose first versions"
    )


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        (onnxruntime.NAME, "1.12 is the lowest version that opens the file"),
        (openvino.NAME, "OpenVINO's documentation names no older version that opens files of this one"),
    ],
)
def test_the_readme_says_it(runtime: str, says: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    folder = delivered(tmp_path, runtime).folder
    assert says in (folder / README).read_text()
