"""What is delivered runs without taglio, in either runtime, and says when it is no longer what was delivered."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.components.build import Manifest
from taglio.components.build import write as write_components
from taglio.components.cut import cut
from taglio.cores import available_cores
from taglio.deploy.prove import prove
from taglio.deploy.verify import BROKEN, HOLDS, UNKNOWN
from taglio.deploy.write import README, VERIFY, Answered, Facts, read_samples, write, write_readme
from taglio.errors import BadArtifact, MeasurementFailed
from taglio.run.in_process import Executor
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.way import Way
from tests.components.cases import tiny
from tests.deploy.repositories import rewritten
from tests.models import parsed, residual, saved

pytest.importorskip("openvino")
OPTIONS = SessionOptions(1)
FACTS = Facts("net.onnx", "ab" * 32, "About 1.2 × as fast", "Measured error: 0.4%", "8 inputs", "a CPU", ("avx2",), 1)


@dataclass(frozen=True)
class Delivery:
    """A delivered folder, the components it was made from, and inputs with taglio's own answers."""

    folder: Path
    components: Path
    manifest: Manifest
    answered: list[Answered]

    def verify(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(self.folder / VERIFY), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def delivered(folder: Path, runtime: str, devices: int = 1, way: Way | None = None) -> Delivery:
    case = tiny(residual("batch" if way and way.joined > 1 else 1), folder)
    placed = {block.name: f"box{index % devices}" for index, block in enumerate(case.graph.blocks)}
    levels = {block.name: index for index, block in enumerate(case.graph.blocks)} if devices > 1 else None
    parts = cut(case.model, case.graph, case.builder.build({}), placed, case.wires({}, placed), levels)
    components = folder / "components"
    runtimes = {f"box{number}": runtime for number in range(devices)}
    manifest = write_components(components, Manifest("ab" * 32, ("x",), case.model.outputs, ()), parts, runtimes)
    shape = case.model.inputs[0].sizes()
    rng = np.random.default_rng(0)
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(3)]
    executor = Executor(components, manifest, OPTIONS)
    answered = [Answered(sample, dict(zip(manifest.outputs, executor.run(sample), strict=True))) for sample in samples]
    write(folder / "deploy", components, manifest, OPTIONS, answered[:2], way)
    write_readme(folder / "deploy", components, FACTS, 50_000_000)
    return Delivery(folder / "deploy", components, manifest, answered)


@pytest.fixture(params=[onnxruntime.NAME, openvino.NAME])
def delivery(request: pytest.FixtureRequest, tmp_path: Path) -> Delivery:
    return delivered(tmp_path, request.param)


def test_the_answers_are_those_of_taglio(delivery: Delivery) -> None:
    proof = prove(delivery.folder, delivery.answered)
    assert (proof.samples, proof.distance <= 1e-6) == (3, True)
    assert proof.peak_memory_bytes is not None and proof.peak_memory_bytes > 20e6
    command = [sys.executable, "-I", "-X", "importtime", str(delivery.folder / VERIFY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == HOLDS
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert "numpy" in imported and "taglio" not in imported
    inputs = read_samples(delivery.folder)
    assert [np.array_equal(one["x"], other.inputs["x"]) for one, other in zip(inputs, delivery.answered)] == [True] * 2


def test_components_that_run_one_after_another(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME, devices=2)
    assert len(delivery.manifest.pieces) > 1
    assert prove(delivery.folder, delivery.answered).distance <= 1e-6
    text = (delivery.folder / README).read_text()
    for piece in delivery.manifest.pieces:
        assert f"| {piece.name} | {piece.device} |" in text


def test_a_changed_file_is_named(delivery: Delivery) -> None:
    manifest = json.loads((delivery.folder / "deploy.json").read_text())
    name = next(name for name in manifest["sha256"] if name.startswith("model"))
    with (delivery.folder / name).open("ab") as file:
        file.write(b"\0")
    ended = delivery.verify()
    assert (ended.returncode, ended.stdout) == (BROKEN, f"changed or missing: {name}: copy the directory again\n")


def test_other_answers_are_measured(delivery: Delivery) -> None:
    wrong = [
        Answered(sample.inputs, {name: 1.01 * value for name, value in sample.outputs.items()})
        for sample in delivery.answered
    ]
    with pytest.raises(MeasurementFailed, match=r"3 checks failed: sample 0: output \S+ differs by 9\.90e-03"):
        prove(delivery.folder, wrong)


def test_a_setting_without_effect_is_no_setting(tmp_path: Path) -> None:
    # Two streams with one thread become one, silently.
    delivery = delivered(tmp_path, openvino.NAME)
    rewritten(delivery.folder, "properties.json", {"NUM_STREAMS": "2"})
    ended = delivery.verify()
    assert ended.returncode == BROKEN
    assert ended.stdout == "openvino computes with NUM_STREAMS=1, not 2, on this processor\n"


def test_without_samples_nothing_can_be_said(delivery: Delivery) -> None:
    shutil.rmtree(delivery.folder / "samples")
    ended = delivery.verify()
    assert (ended.returncode, ended.stdout) == (UNKNOWN, "no samples were delivered: nothing to compare\n")
    assert read_samples(delivery.folder) == ()


WAYS = [
    pytest.param(Way(1), id="alone"),
    pytest.param(Way(1, 2), id="two"),
    pytest.param(Way(2, 2, 2), id="all"),
    pytest.param(Way(2, 2, shared=True), id="shared"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runtime", [onnxruntime.NAME, openvino.NAME])
def test_the_readme_says_how_to_run_the_model_and_its_python_runs(runtime: str, way: Way, tmp_path: Path) -> None:
    if runtime == openvino.NAME and way.shared:
        pytest.skip("OpenVINO has no pool that runs share")
    if runtime == openvino.NAME and way.used_threads > available_cores():
        way = replace(way, threads=1, at_once=min(way.at_once, available_cores()))  # more streams become fewer
    delivery = delivered(tmp_path, runtime, way=way)
    text = (delivery.folder / README).read_text()
    assert f"| how it runs | {way} |" in text and "| inputs | 'x' float32 [" in text
    many = way != Way(1)
    assert (f"run it as it was measured: {way}." in text) == ("Callers(" in text) == many
    assert ("DeployedModel(" in text) != many
    assert ("Requests that wait while it runs are joined into one run, up to 2, if" in text) == (way.joined > 1)
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    command = [sys.executable, "-c", snippet]
    ended = subprocess.run(command, cwd=delivery.folder, capture_output=True, text=True, check=True)
    answers = ended.stdout.count(str(next(iter(delivery.answered[0].outputs.values())).shape))
    assert answers == 2 if many else answers  # one line a sample, whatever was joined
    (snippet,) = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    if runtime == openvino.NAME:
        assert ("index < 2; ++index) requests.push_back(model.create_infer_request())" in snippet) == (way.at_once > 1)
        return
    # A run of one thread computes in its caller's, so all callers share a session, as they do where runs share a pool.
    lines = snippet.splitlines()
    caller = next((number for number, line in enumerate(lines) if "callers.emplace_back" in line), len(lines))
    session = next(number for number, line in enumerate(lines) if "Ort::Session session(" in line)
    assert ("caller < 2; ++caller" in snippet) == (way.at_once > 1)
    assert (session > caller) == (way.at_once > 1 and way.threads > 1 and not way.shared)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_snippet_in_cpp_compiles_and_runs(at_once: int, tmp_path: Path) -> None:
    import openvino as package  # noqa: PLC0415 - optional

    if at_once > available_cores():
        pytest.skip("OpenVINO makes one stream of two here")
    delivery = delivered(tmp_path, openvino.NAME, way=Way(1, at_once))
    (snippet,) = re.findall(r"```cpp\n(.*?)```", (delivery.folder / README).read_text(), re.DOTALL)
    (tmp_path / "main.cpp").write_text(snippet)
    root = Path(package.__file__).parent
    (library,) = (root / "libs").glob("libopenvino.so.*")
    flags = ["-std=c++17", f"-I{root / 'include'}", "-o", str(tmp_path / "main"), str(tmp_path / "main.cpp")]
    linked = [str(library), f"-Wl,-rpath,{root / 'libs'}", f"-Wl,-rpath-link,{root / 'libs'}"]
    subprocess.run(["g++", *flags, *linked], check=True, capture_output=True, text=True)
    ended = subprocess.run([str(tmp_path / "main")], cwd=delivery.folder, capture_output=True, text=True, check=True)
    shape = next(iter(delivery.answered[0].outputs.values())).shape
    assert ended.stdout.split() == [f"[{','.join(map(str, shape))}]"] * at_once


def test_text_is_delivered(tmp_path: Path) -> None:
    from taglio.deploy.write import write_samples  # noqa: PLC0415

    words = np.array(["a", "bc"], object)
    write_samples(tmp_path / "samples", [Answered({"words": words}, {"length": np.array([1, 2])})])
    (sample,) = read_samples(tmp_path)
    assert sample["words"].dtype == object
    assert sample["words"].tolist() == ["a", "bc"]


def test_names_of_files_cannot_leave_the_folder(delivery: Delivery) -> None:
    index = delivery.folder / "samples" / "samples.json"
    (delivery.folder.parent / "secret.npy").write_bytes((delivery.folder / "samples" / "0-inputs-0.npy").read_bytes())
    index.write_text(json.dumps([{"inputs": {"x": "../../secret.npy"}, "outputs": {}}]))
    with pytest.raises(BadArtifact):
        read_samples(delivery.folder)


@pytest.mark.whole
def test_a_model_with_random_answers_is_not_delivered_and_the_cause_is_said(tmp_path: Path) -> None:
    text = """(float[1, 8] x) => (float[1, 8] y) {
        z = MatMul (x, w)
        noise = RandomNormalLike (z)
        y = Add (z, noise)
    }"""
    model = saved(parsed(text, {"w": np.eye(8, dtype=np.float32)}), tmp_path)
    rows = np.random.default_rng(0).standard_normal((8, 1, 8)).astype(np.float32)
    result = taglio.optimize(model, rows, max_error=1.0, effort=0.01, threads=1, runtime=onnxruntime.NAME)
    with pytest.raises(MeasurementFailed, match="answers differ from run to run: turn the noise off"):
        result.save(tmp_path / "out")
