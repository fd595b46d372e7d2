"""Other programs work on every processor while a model is optimised: figures are as on a quiet machine, or come with
the line that says by how much they may be off."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.command import SCHEME, Case, begun

SPIN = "while True: pass"


def optimize(case: Case, out: Path, busy_s: tuple[float, float]) -> dict[str, object]:
    """Optimise, with every processor taken from and until these seconds."""
    options = ("--max-error", "0.05", "--scheme", SCHEME, "--effort", "0.2", "-o", out, "--json")
    begun_s, spinning = time.monotonic(), list[subprocess.Popen[bytes]]()
    with begun("optimize", *case.arguments(), *options, stderr=None) as process:
        try:
            while process.poll() is None:
                now_s = time.monotonic() - begun_s
                if busy_s[0] <= now_s < busy_s[1] and not spinning:
                    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
                if now_s >= busy_s[1]:
                    for each in spinning:
                        each.kill()
                time.sleep(0.05)
        finally:
            for each in spinning:
                each.kill()
                each.wait()
        assert process.stdout is not None
        found: dict[str, object] = json.loads(process.stdout.read())
        return found


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count of what processors worked is Linux's")
def test_a_machine_that_is_busy_throughout_is_said(few_digits: Case, tmp_path: Path) -> None:
    found = optimize(few_digits, tmp_path / "out", (0.0, 1e9))
    assert "the machine was busy" in str(found["doubt"])
    assert found["doubt"] == json.loads((tmp_path / "out" / "outcome.json").read_text())["body"]["doubt"]
