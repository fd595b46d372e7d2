"""A made-up workspace of the embedded model, in which every stage has left its artifact."""

import hashlib
from dataclasses import replace
from pathlib import Path

from taglio import artifact
from taglio.components.build import MANIFEST, Manifest, Piece, Port
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE
from taglio.error.model import Alone, ErrorModel, OutputModel, Subset
from taglio.flow import workspace
from taglio.flow.outcome import Figures, Outcome
from taglio.lab.setup import Setup
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.profile.attribution import Attribution
from taglio.profile.machine import Machine
from taglio.profile.result import BlockTime, Conditions, Glue, Profile, WholeRun
from taglio.profile.wall_time import WallTime
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.run.in_process import PieceTime, RunReport
from taglio.search.front import Point
from tests.models import digits_model

FORMS = precisions(DEFAULT_SCHEME)


def wall(seconds: float) -> WallTime:
    return WallTime(seconds, seconds / 50, seconds * 1.1, seconds * 1.01, 30, seconds)


def made_up_profile(model: Model, graph: Graph) -> Profile:
    machine = Machine("Imaginary 9000", 4, ("avx2", "avx512_vnni"), 2**33, "Linux 6", "3.11.7")
    nothing = Attribution({}, {}, 0.0)
    blocks = tuple(
        BlockTime(block.name, form.name, 1e-5 * (index + 1) / (1.0 if form.scheme is None else 2.0))
        for index, block in enumerate(graph.blocks)
        for form in FORMS
    )
    glue = tuple(Glue(flow.name, 0.0, 1e-6, 2e-6, 3e-6) for flow in graph.flows)
    everything = {block.name: "int8" for block in graph.candidates()}
    runs = (
        WholeRun("float32", {}, wall(9e-3), nothing, False, 9e-3),
        WholeRun("int8", everything, wall(5e-3), nothing, False, 5e-3),
        *(
            WholeRun(f"mix{index}", {}, wall(6e-3 + index * 1e-3), nothing, True, 6.2e-3 + index * 1e-3)
            for index in range(4)
        ),
    )
    conditions = Conditions(machine, "onnxruntime", "1.31.1", 2, False, "all")
    return Profile(model.sha256, conditions, DEFAULT_SCHEME, FORMS, blocks, glue, 1e-4, 0.1, runs)


def made_up_error(model: Model, graph: Graph) -> ErrorModel:
    names = [block.name for block in graph.candidates() if not block.movement]
    alone = tuple(Alone(name, "int8", 1e-4 * (index + 1)) for index, name in enumerate(names))
    subsets = [Subset({}, 0.0, 0.0)]
    subsets += [Subset(dict.fromkeys(names[:size], "int8"), 1e-3 * size, 1.1e-3 * size) for size in range(1, 20)]
    output = OutputModel("logits", (), (), 0.0, 1.0)
    scheme, data = DEFAULT_SCHEME, "0" * 64
    return ErrorModel(model.sha256, data, scheme, RELATIVE, (output,), 0.1, 8, 57, alone, tuple(subsets))


def made_up_plan(model: Model, graph: Graph, assignment: Assignment) -> Plan:
    latency, error = Interval(4e-3, 4.5e-3, 5e-3), Interval(0.0, 0.0075, 0.009)
    devices = {block.name: "camera" if index < 9 else "server" for index, block in enumerate(graph.blocks)}
    places = tuple(replace(block, device=devices[block.block]) for block in placements(graph, assignment))
    return Plan(model.sha256, DEFAULT_SCHEME, FORMS, Limits(0.01), places, "optimal", 0.0, latency, error, 0.008)


def made_up_outcome(model: Model, graph: Graph, profile: Profile, count: int, plan: Plan) -> Outcome:
    everything = len(graph.candidates())

    def forms(blocks: int) -> dict[str, str]:
        return {block.name: "int8" for block in graph.candidates()[:blocks]}

    return Outcome(
        "digits",
        model.sha256,
        profile.conditions,
        str(DEFAULT_SCHEME),
        0.01,
        "optimal",
        0.0,
        len(graph.blocks),
        128,
        272,
        Figures("float32", wall(9e-3), 9.1e-3, 0.0, 0.0, 1_500_000, 0, 1.0),
        Figures("int8", wall(5e-3), 5.2e-3, 0.023, 0.021, 470_000, everything, 0.98),
        Figures("plan", wall(4.5e-3), 4.5e-3, 0.008, 0.0075, 630_000, count, 0.99),
        (
            Point("plan 1", "onnxruntime", forms(count), 4.5e-3, wall(4.5e-3), 0.008, judged=True, holds=True),
            Point("tried 2", "onnxruntime", forms(count + 2), 4.4e-3, None, 0.013, judged=False, holds=False),
            Point("int8", "onnxruntime", forms(everything), 5.2e-3, wall(5e-3), 0.023, judged=True, holds=False),
            Point("float32", "onnxruntime", {}, 9.1e-3, wall(9e-3), 0.0, judged=True, holds=True),
        ),
        {"profile": 3.4, "error": 10.5},
        300_000_000,
        plan_sha256=plan.fingerprint(),
    )


def fill(folder: Path, model: Model) -> Graph:
    """A workspace in which every stage has left its artifact."""
    graph, sha256 = build(model), model.sha256
    chosen = {block.name: FORMS[1] for block in graph.candidates()[4:20]}
    assignment = effective(graph, chosen, FORMS[1])
    profile = made_up_profile(model, graph)
    setup = Setup(str(digits_model()), {}, str(digits_data()), "", 0, 2, "all")
    body = b"not really an ONNX file"
    port, out = Port("image", "float32", (1, 1, 32, 32), 4096), Port("logits", "float32", (1, 10), 40)
    digest = hashlib.sha256(body).hexdigest()
    piece = Piece("0-camera", "camera", "0-camera.onnx", digest, len(body), (), (port,), (out,))
    plan = made_up_plan(model, graph, assignment)
    run = RunReport(
        wall(4.6e-3),
        wall(9.2e-3),
        (PieceTime("0-camera", "camera", wall(4e-3)),),
        4.5e-3,
        1.02,
        0.978,
        1.0,
        plan.fingerprint(),
    )
    artifact.write_bytes(folder / workspace.FLOAT_MODEL, model.proto.SerializeToString())
    artifact.save(folder / "setup.json", "setup", sha256, setup)
    artifact.save(folder / "profile.json", "profile", sha256, profile)
    artifact.save(folder / "error.json", "error", sha256, made_up_error(model, graph))
    artifact.save(folder / "plan.json", "plan", sha256, plan)
    artifact.save(
        folder / "outcome.json", "outcome", sha256, made_up_outcome(model, graph, profile, len(assignment), plan)
    )
    artifact.write_bytes(folder / "components" / piece.file, body)
    manifest = Manifest(sha256, ("image",), ("logits",), (piece,))
    artifact.save(folder / "components" / MANIFEST, "manifest", sha256, manifest)
    artifact.save(folder / "graph.json", "graph", sha256, graph)
    artifact.save(folder / "run.json", "run", sha256, run)
    return graph
