"""Write a built model as it is delivered: files and settings of each component, samples, README.md and verify.py.

Opens no session and judges nothing: prove.py runs what is written here.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from taglio import artifact, weights
from taglio.components.build import Manifest, Piece
from taglio.data.dataset import Sample
from taglio.deploy import verify
from taglio.deploy.folder import DeliveredModel, DeliveredPart, described
from taglio.deploy.verify import MANIFEST, SAMPLES
from taglio.errors import BadArtifact, one_line
from taglio.model.captures import graphs
from taglio.model.inputs import spec_of
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Exported, export, in_way
from taglio.runtimes.way import Way
from taglio.scratch import scratch

README, VERIFY, SAMPLES_FOLDER = "README.md", "verify.py", "samples"


@dataclass(frozen=True, slots=True)
class Facts:
    """What README.md says about the model, apart from its files. `speedup`, `error` and `data` are sentences,
    `instructions` the processor's features; `warnings` say where the model must not be used."""

    model: str
    model_sha256: str
    speedup: str
    error: str
    data: str
    processor: str
    instructions: tuple[str, ...]
    threads: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """An input and the outputs that the model gives for it; only tensors can be compared."""

    inputs: Sample
    outputs: Mapping[str, np.ndarray]


def write(
    folder: Path,
    components: Path,
    manifest: Manifest,
    options: SessionOptions,
    samples: Sequence[Answered],
    way: Way | None = None,
) -> None:
    """Write all but README.md from the files in `components`. `samples` may be empty. `way` None: one run at a time.

    Files are replaced one by one, never written to: the folder may share them with an older state of the workspace.
    """
    way = way or options.way
    options = replace(options, threads=way.threads, at_once=way.at_once, spinning=way.spinning)
    parts, hashes = [], dict[str, str]()
    for piece in manifest.pieces:
        with scratch() as temporary:
            exported = export(components / piece.file, temporary, replace(options, runtime=piece.runtime))
            settings = exported.settings_file if len(manifest.pieces) == 1 else f"{piece.name}.{exported.settings_file}"
            (temporary / settings).write_text(json.dumps(exported.settings, indent=2) + "\n")
            for file in (*exported.files, temporary / settings):
                with artifact.replacing(folder / file.name) as target:
                    shutil.copyfile(file, target)
                hashes[file.name] = weights.sha256(folder / file.name)
        parts.append(_part(piece, exported, settings))
    write_manifest(folder, DeliveredModel(manifest.inputs, manifest.outputs, tuple(parts), hashes, way))
    artifact.write_bytes(folder / VERIFY, Path(verify.__file__).read_bytes())
    if samples:
        write_samples(folder / SAMPLES_FOLDER, samples)


def _part(piece: Piece, exported: Exported, settings: str) -> DeliveredPart:
    return DeliveredPart(
        name=piece.name,
        device=piece.device,
        runtime=exported.package,
        version=piece.runtime_version,
        model=exported.model.name,
        settings=settings,
        inputs=tuple(port.name for port in piece.inputs),
        outputs=tuple(port.name for port in piece.outputs),
    )


def write_manifest(folder: Path, model: DeliveredModel) -> None:
    """Write deploy.json, which describes `model`."""
    fields = asdict(model)
    del fields["folder"]
    artifact.write_bytes(folder / MANIFEST, json.dumps(fields, indent=2).encode())


def write_source(
    folder: Path,
    source: Path | onnx.ModelProto,
    inputs: Sequence[str],
    outputs: Sequence[str],
    threads: int,
    callers: int = 1,
) -> None:
    """Write what `verify.DeployedModel` needs to open `source` as users of ONNX Runtime do: default options, `threads`
    for all `callers`, and no busy-waiting between runs, which would take the processor from a model that runs beside
    it. A path is referred to, not copied."""
    if isinstance(source, Path):
        model = source
    else:
        model = folder / "model.onnx"
        artifact.write_model(model, source)
    settings = {
        "graph_optimization_level": "ORT_ENABLE_ALL",
        "intra_op_num_threads": threads,
        "inter_op_num_threads": 0,
        "config_entries": {"session.force_spinning_stop": "1"},
        "providers": [["CPUExecutionProvider", {}]],
    }
    exported = Exported("onnxruntime", model.absolute(), (), "session.json", settings)
    _write_one(folder, exported, inputs, outputs, Way(threads, callers, spinning=True, shared=True))


def write_in_way(folder: Path, delivered: Path, way: Way) -> None:
    """Write what `verify.DeployedModel` needs to open the model in `delivered`, whose files are referred to, in another
    way."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((delivered / MANIFEST).read_text())
    for part in manifest["components"]:
        settings = json.loads((delivered / part["settings"]).read_text())
        artifact.write_bytes(folder / part["settings"], json.dumps(in_way(part["runtime"], settings, way)).encode())
        part["model"] = str((delivered / part["model"]).absolute())
    manifest |= {"way": asdict(way), "sha256": {}}
    artifact.write_bytes(folder / MANIFEST, json.dumps(manifest).encode())


def write_opened(
    folder: Path, path: Path, inputs: Sequence[str], outputs: Sequence[str], options: SessionOptions
) -> None:
    """Write what `verify.DeployedModel` needs to open the model at `path` with `options`. Raises as `export`."""
    folder.mkdir(parents=True, exist_ok=True)
    way = replace(options.way, at_once=options.at_once)
    _write_one(folder, export(path, folder, options), inputs, outputs, way)


def _write_one(folder: Path, exported: Exported, inputs: Sequence[str], outputs: Sequence[str], way: Way) -> None:
    ports = {"inputs": list(inputs), "outputs": list(outputs)}
    part = {"runtime": exported.package, "model": str(exported.model), "settings": exported.settings_file, **ports}
    manifest = {**ports, "way": asdict(way), "components": [part], "sha256": {}}
    artifact.write_bytes(folder / exported.settings_file, json.dumps(exported.settings).encode())
    artifact.write_bytes(folder / MANIFEST, json.dumps(manifest).encode())


def write_samples(folder: Path, samples: Sequence[Answered]) -> None:
    """Write inputs and outputs as .npy files that NumPy opens without pickle."""
    listed = []
    for number, sample in enumerate(samples):
        listed.append(
            {
                kind: {
                    name: _write_array(folder / f"{number}-{kind}-{index}.npy", value)
                    for index, (name, value) in enumerate(tensors.items())
                }
                for kind, tensors in (("inputs", sample.inputs), ("outputs", sample.outputs))
            }
        )
    artifact.write_bytes(folder / SAMPLES, json.dumps(listed, indent=2).encode())


def read_samples(folder: Path) -> tuple[Sample, ...]:
    """The inputs of the samples in a delivered folder; none if it has none. Raises BadArtifact for damaged ones."""
    return tuple(sample.inputs for sample in read_answered(folder))


def read_answered(folder: Path) -> tuple[Answered, ...]:
    """The samples in a delivered folder with the outputs to expect, as `read_samples`."""
    index = folder / SAMPLES_FOLDER / SAMPLES
    if not index.exists():
        return ()
    try:
        artifact.read_bytes(index)  # refuses devices and pipes
        return tuple(Answered(inputs, outputs) for inputs, outputs in verify.read_samples(index.parent))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadArtifact(f"{index}: damaged ({one_line(error)}): run taglio build again") from None


def _write_array(path: Path, value: np.ndarray) -> str:
    array = np.asarray(value)
    with artifact.replacing(path) as target, target.open("wb") as file:
        np.save(file, array.astype(str) if array.dtype == object else array, allow_pickle=False)
    return path.name


def template(name: str) -> Template:
    """A template of this package, of a text for people."""
    templates = Environment(
        loader=PackageLoader("taglio.deploy", "."),
        autoescape=select_autoescape(),  # nothing is escaped
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template(name)


def write_readme(folder: Path, components: Path, facts: Facts, peak_memory_bytes: int | None) -> None:
    """Write README.md for what `write` wrote and prove.py has run. `peak_memory_bytes` is that of verify.py."""
    model = described(folder)
    proto = onnx.load(components / f"{Path(model.components[0].model).stem}.onnx", load_external_data=False)
    domains = {node.domain for graph in graphs(proto.graph) for node in graph.node}
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import if entry.domain in domains}
    text = template("README.md.j2").render(
        facts=facts,
        parts=model.components,
        way=model.way,
        inputs=model.inputs,
        outputs=model.outputs,
        takes=[str(spec_of(value)) for value in proto.graph.input],
        gives=[str(spec_of(value)) for value in proto.graph.output],
        hashes=model.sha256,
        settings={part.settings: json.loads((folder / part.settings).read_text()) for part in model.components},
        opsets=opsets,
        ir_version=proto.ir_version,
        peak_memory_bytes=peak_memory_bytes,
        samples=(folder / SAMPLES_FOLDER / SAMPLES).exists(),
    )
    artifact.write_bytes(folder / README, text.encode())
