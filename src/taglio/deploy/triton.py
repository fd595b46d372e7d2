"""A component as Triton serves it: config.pbtxt for its ONNX Runtime or its OpenVINO backend. Writes no repository.

Facts from the backends' sources (triton-inference-server/onnxruntime_backend at 00fd3e8, openvino_backend at db19304):

1. *The ONNX Runtime backend completes a configuration that lists no inputs or no outputs*: where all first dimensions
   are dynamic it raises a `max_batch_size` of 0 to its default of 4 and adds `dynamic_batching`, so requests are joined
   whatever the graph does with their rows (ModelState::AutoCompleteConfig). It leaves a configuration alone that lists
   both, since 2020. So both are always listed.
2. *`max_batch_size: 0` is what keeps requests apart exactly.* With 1, Triton takes the first dimension of every tensor
   for the batch: requests of more rows are refused, and an output gets the first dimension of the request
   (triton-inference-server/backend, BackendOutputResponder::ProcessTensor), so boxes found in an image would be cut.
3. With 0, `dims` are whole shapes. Outputs are compared exactly with what ONNX Runtime reports (CompareDimsSupported).
4. *`optimization { graph { level } }`*: -1 is ONNX Runtime's basic level, 1 its extended one, 2 none at all; without it
   all optimisations run.
5. The ONNX Runtime backend passes on threads and execution mode; of session configuration entries only
   `session.use_device_allocator_for_initializers`. Each instance opens a session of its own, also of runs of one
   thread, which elsewhere share one.
6. *The OpenVINO backend* passes on five properties (ModelState::ParseParameters): INFERENCE_NUM_THREADS,
   COMPILATION_NUM_THREADS, HINT_BF16 (only YES), NUM_STREAMS, PERFORMANCE_HINT. Nothing says float32, and OpenVINO's
   default is bfloat16 where the processor has it, so the file itself must keep each layer in float32.
7. It completes `max_batch_size` where the file has a layout with a batch, even of inputs that are listed. Delivered
   files have no layout. With a `max_batch_size` of N it compiles the model for exactly N rows (ov::set_batch) and
   refuses or pads other requests, so it never gets one.
8. It compiles a model once, for the first instance, and each instance has an inference request of that
   (ModelState::LoadModel, CreateInferRequest): as many instances as streams keep all of them busy, and share the
   weights.
9. `dynamic_batching { }` prefers batches of `max_batch_size` rows and delays no request for others: its
   `max_queue_delay_microseconds` is 0 by default.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taglio.deploy.folder import DeliveredModel, DeliveredPart
from taglio.deploy.served import WITHOUT_EFFECT_ON_ANSWERS, Joining, ServedComponent, check_tensors, refused
from taglio.runtimes import openvino
from taglio.runtimes.openvino_marks import unkept
from taglio.runtimes.places import bfloat16_refusal
from taglio.runtimes.signature import Signature, signature

SERVER = "Triton"
_WHOLE_NUMBERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_OF_ONNXRUNTIME = {
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(bool)": "BOOL",
    "tensor(string)": "STRING",
    **{f"tensor({name.lower()})": name for name in _WHOLE_NUMBERS},
}
_OF_OPENVINO = {
    "f32": "FP32",
    "f16": "FP16",
    "boolean": "BOOL",
    **{name.lower().replace("uint", "u").replace("int", "i"): name for name in _WHOLE_NUMBERS},
}
# ONNX Runtime's level -> the line that selects it in Triton.
_LEVELS = {
    "ORT_ENABLE_ALL": "",
    "ORT_ENABLE_EXTENDED": "optimization { graph { level: 1 } }",
    "ORT_ENABLE_BASIC": "optimization { graph { level: -1 } }",
    "ORT_DISABLE_ALL": "optimization { graph { level: 2 } }",
}
_PASSED_ON = ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT")
_SPINNING = "session.intra_op.allow_spinning"


def served(model: DeliveredModel, part: DeliveredPart, name: str, joining: Joining, folder: Path) -> ServedComponent:
    """`part` as Triton serves it under `name`; `folder` takes files that differ from the delivered ones. Raises
    BadOption where its answers would differ."""
    settings = json.loads((model.folder / part.settings).read_text())
    if part.runtime == openvino.NAME:
        return _with_openvino(model, part, name, settings, folder)
    return _with_onnxruntime(model, part, name, settings, joining)


def _with_onnxruntime(
    model: DeliveredModel, part: DeliveredPart, name: str, settings: Mapping[str, Any], joining: Joining
) -> ServedComponent:
    files, entries = model.files(part), settings["config_entries"]
    ports = signature(part.runtime, files[0])
    check_tensors(part, SERVER, (*ports.inputs, *ports.outputs), _OF_ONNXRUNTIME)
    unsafe = sorted(set(entries) - WITHOUT_EFFECT_ON_ANSWERS)
    if unsafe:
        reason = f"answers may depend on {unsafe[0]}, which it cannot set"
        raise refused(part, SERVER, reason, "use taglio serve or `layout` plain")
    remarks = []
    if entries.get(_SPINNING) == "0":
        remarks.append("threads spin while they wait (ONNX Runtime's default; delivered with allow_spinning=0)")
    remarks += [f"{key}={value} cannot be set" for key, value in entries.items() if key != _SPINNING]
    if joining.why_alone:
        remarks.append(f"requests are not joined: {joining.why_alone}")
    if model.way.at_once > 1:
        alone = model.way.threads > 1 and not model.way.shared
        measured = "as measured" if alone else "measured with one session that all callers shared"
        remarks.append(
            f"each of {model.way.at_once} instances opens a session, so the weights are held as many times: {measured}"
        )
    rows = 0 if joining.why_alone else joining.rows
    kept = {
        "intra_op_thread_count": settings["intra_op_num_threads"],
        "inter_op_thread_count": settings["inter_op_num_threads"],
        "execution_mode": 0,
    }
    instances = _instances(model.way.at_once, "a session of its own, with its own threads and memory")
    extra = [_LEVELS[settings["graph_optimization_level"]], "dynamic_batching { }" if rows else "", instances]
    return ServedComponent(
        part,
        name,
        files,
        {**settings, "config_entries": {}, "providers": [["CPUExecutionProvider", {}]]},
        _configuration(
            name, part.runtime, files[0].name, rows, [*_tensors(ports, _OF_ONNXRUNTIME, rows), *extra], kept
        ),
        rows or 1,
        tuple(remarks),
    )


def _with_openvino(
    model: DeliveredModel, part: DeliveredPart, name: str, settings: Mapping[str, Any], folder: Path
) -> ServedComponent:
    files = model.files(part)
    remarks = ["requests are not joined: its OpenVINO backend joins only to a fixed number of rows"]
    kept = {key: settings[key] for key in _PASSED_ON if key in settings}
    precision = settings["INFERENCE_PRECISION_HINT"]
    unsafe = sorted(set(settings) - {*_PASSED_ON, "INFERENCE_PRECISION_HINT"})
    if unsafe:
        raise refused(part, SERVER, f"it cannot set {unsafe[0]}", "use `layout` ovms or plain")
    if precision == "bf16":
        parameters = {**kept, "HINT_BF16": "YES"}
        applied = {**kept, "INFERENCE_PRECISION_HINT": "bf16"}
    elif precision == "f32":
        files = openvino.export_float32(files[0], folder, files[0].stem)
        parameters, applied = kept, kept
        lost = unkept(files[0]) if bfloat16_refusal() else ""
        if lost:  # with bfloat16 here, the proof opens the file as Triton does, and shows it
            raise refused(
                part,
                SERVER,
                f"its OpenVINO backend cannot ask for float32, and on processors with bfloat16 {lost}",
                "use `layout` ovms or plain",
            )
        remarks.append("Triton cannot ask OpenVINO for float32, so the file keeps each layer in float32")
        if bfloat16_refusal():
            remarks.append("this processor lacks bfloat16, so that was not shown by running it")
    else:
        raise refused(part, SERVER, f"it cannot set INFERENCE_PRECISION_HINT={precision}", "use `layout` ovms or plain")
    ports = signature(part.runtime, files[0])
    check_tensors(part, SERVER, (*ports.inputs, *ports.outputs), _OF_OPENVINO)
    scalars = [port.name for port in ports.inputs if not port.dims]
    if scalars:
        raise refused(part, SERVER, f"its OpenVINO backend takes no single number: {scalars[0]}", "use `layout` ovms")
    instances = _instances(model.way.at_once, "an inference request of one compiled model, which has a stream for each")
    lines = [*_tensors(ports, _OF_OPENVINO, 0), instances]
    configuration = _configuration(name, part.runtime, files[0].name, 0, lines, parameters)
    return ServedComponent(part, name, files, applied, configuration, 1, tuple(remarks))


def _instances(count: int, holds: str) -> str:
    """The lines that make Triton run `count` requests at once; `holds` says what it opens for each of them."""
    return f"# Each instance has {holds}.\ninstance_group [ {{ kind: KIND_CPU count: {count} }} ]"


def _configuration(
    name: str, backend: str, file: str, rows: int, lines: Sequence[str], parameters: Mapping[str, object]
) -> str:
    """A config.pbtxt (inference.ModelConfig in text). `rows` 0: requests are not joined; `lines` are those that differ
    by model."""
    why = (
        "The model answers each row of a batch as it answers the row alone."
        if rows
        else "0: each request runs alone, as it is. Inputs and outputs are listed, or Triton would complete this to 4."
    )
    written = [
        f"name: {_text(name)}",
        f"backend: {_text(backend)}",
        f"default_model_filename: {_text(file)}",
        f"# {why}",
        f"max_batch_size: {rows}",
        *filter(None, lines),
        *(
            f"parameters {{ key: {_text(key)} value {{ string_value: {_text(value)} }} }}"
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(written) + "\n"


def _tensors(ports: Signature, types: Mapping[str, str], rows: int) -> list[str]:
    """The inputs and outputs, one line each."""
    lines = []
    for kind, of_kind in (("input", ports.inputs), ("output", ports.outputs)):
        for port in of_kind:
            dims = port.dims[1:] if rows else port.dims
            # A shape must have a dimension in Triton. A single number is [1] there; of rows it is reshaped to nothing.
            reshape = " reshape { shape: [ ] }" if rows and not dims else ""
            shape = f"[ {', '.join(map(str, dims or (1,)))} ]{reshape}"
            lines.append(f"{kind} {{ name: {_text(port.name)} data_type: TYPE_{types[port.dtype]} dims: {shape} }}")
    return lines


def _text(value: object) -> str:
    """A string of protobuf's text format."""
    return json.dumps(str(value), ensure_ascii=False)
