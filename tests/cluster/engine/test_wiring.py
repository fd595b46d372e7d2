"""What is sent where follows from the manifest alone."""

from dataclasses import replace

import pytest

from taglio.cluster.engine.wiring import CALLER, wire
from taglio.components.build import Manifest, Piece, Port
from taglio.errors import BadArtifact


def port(name: str, size: int = 4) -> Port:
    return Port(name, "uint8", (size,), size)


def piece(name: str, device: str, reads: str, writes: str) -> Piece:
    inputs, outputs = (tuple(port(each) for each in text.split()) for text in (reads, writes))
    return Piece(name, device, f"{name}.onnx", "0" * 64, 1, (), inputs, outputs)


THERE_AND_BACK = Manifest(
    "m", ("x",), ("y", "z"),
    (
        piece("0", "camera", "x", "a b"),
        piece("1", "server", "a b", "c z"),
        piece("2", "server", "b", "d"),
        piece("3", "camera", "c d b", "y"),
    ),
)  # fmt: skip


def test_a_tensor_crosses_once_for_each_device_that_reads_it() -> None:
    wiring = wire(THERE_AND_BACK)
    found = [(each.source, each.device, each.names) for each in wiring.messages]
    assert found == [
        (CALLER, "camera", ("x",)),
        ("0", "server", ("a",)),
        ("0", "server", ("b",)),
        ("0", "camera", ("b",)),
        ("1", "camera", ("c",)),
        ("1", CALLER, ("z",)),
        ("2", "camera", ("d",)),
        ("3", CALLER, ("y",)),
    ]
    assert wiring.reads == {"0": (0,), "1": (1, 2), "2": (2,), "3": (3, 4, 6)}
    assert [wiring.messages[index].ends("camera") for index in (0, 1)] == [("camera", "camera"), ("camera", "server")]
    both = replace(THERE_AND_BACK, pieces=(*THERE_AND_BACK.pieces[:2], *THERE_AND_BACK.pieces[3:]))
    together = wire(replace(both, pieces=(*both.pieces[:2], piece("3", "camera", "c b", "y"))))
    assert [each.names for each in together.messages][1] == ("a", "b") and together.messages[1].bytes == 8


def test_an_output_that_is_read_on_goes_to_both() -> None:
    manifest = replace(THERE_AND_BACK, outputs=("c", "y"))
    sent = [(each.device, each.names) for _, each in wire(manifest).sends("1")]
    assert sent == [("camera", ("c",)), (CALLER, ("c",))]


def test_a_tensor_that_nobody_writes_is_refused() -> None:
    with pytest.raises(BadArtifact, match="2 reads q, which nothing writes"):
        wire(replace(THERE_AND_BACK, pieces=(piece("2", "camera", "q", "y"),)))
