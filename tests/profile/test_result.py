"""What a profile says about a model that is divided into components."""

from dataclasses import replace

from taglio.profile.result import in_components
from tests.plan.made_up import Sketch, profile_of


def test_a_change_of_type_saves_nothing_in_components_and_costs_what_it_takes() -> None:
    sketch = Sketch()
    sketch.conv(sketch.input("x"))
    graph = sketch.graph()
    profile = profile_of(graph, {("conv0", "float32"): 20.0}, {})
    saving = tuple(replace(glue, quantize_s=2e-6, dequantize_s=-1e-6) for glue in profile.glue)
    for glue in in_components(replace(profile, glue=saving)).glue:
        assert (glue.quantize_s, glue.dequantize_s) == (2e-6, 0.0)
