"""The line that describes a machine says what decides how fast int8 and bfloat16 are."""

import pytest

from taglio.profile.machine import Machine


@pytest.mark.parametrize(
    ("have", "said", "lacks_vnni"),
    [
        (("avx2",), "AVX2 without VNNI", True),
        (("avx2", "avx_vnni"), "avx_vnni", False),
        (("asimd", "asimddp"), "asimd asimddp", False),
        ((), "instruction sets not known", False),
    ],
)
def test_a_machine_names_its_instruction_sets(have: tuple[str, ...], said: str, lacks_vnni: bool) -> None:
    machine = Machine("Some CPU", 2, have, 2**34, "Linux 6", "3.11")
    assert str(machine) == f"Some CPU, 2 cores, 16 GiB, {said}"
    assert machine.lacks_vnni == lacks_vnni
