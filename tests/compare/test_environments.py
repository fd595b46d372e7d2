"""Environments of back ends: found, built from a lock file, refused, removed, and what is said of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

from taglio.compare import environments
from taglio.compare.environments import BACKENDS, ENVIRONMENTS, STAMP, Environment, find
from taglio.errors import BadEnvironment, Busy
from tests.end_to_end.command import ENVIRONMENT, ROOT, refused, taglio

SMALL = Environment("small", {"small": ">=1,<2"}, 10**6)


def pretend(folder: Path, name: str, versions: dict[str, str]) -> Path:
    """A finished environment with the metadata of packages of these `versions`; its interpreter."""
    place = folder / name
    python = place / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    for package, number in versions.items():
        info = place / "lib" / "python3.11" / "site-packages" / f"{package.replace('-', '_')}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")
    (place / STAMP).write_text("")
    return python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path / "backends"))
    return tmp_path / "backends"


@pytest.mark.parametrize("backend", [name for name in BACKENDS if BACKENDS[name] != "core"])
@pytest.mark.usefixtures("folder")
def test_what_is_missing_comes_with_how_to_get_it(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "installed", lambda *_: {})  # nothing is installed beside taglio
    found = find(backend)
    assert found.interpreter is None
    name = BACKENDS[backend]
    assert found.reason.endswith(f"not installed: run taglio backends add {name}")


@pytest.mark.parametrize("other", ["2024.6.0", "2027.0.0"])
def test_another_version_is_named_with_what_is_wanted(folder: Path, other: str) -> None:
    pretend(folder, "openvino", {"openvino": other})
    found = find("openvino")
    assert found.interpreter is None
    assert f"openvino {other}, needs >=2026.4,<2027" in found.reason
    assert environments.inspect(environments.environment("openvino")).status == "broken"


def test_the_runtime_of_plans_is_the_back_end_of_compare() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    openvino = next(each for each in ENVIRONMENTS if each.name == "openvino")
    assert extras["openvino"] == [f"{name}{versions}" for name, versions in openvino.packages.items()]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lock file of SMALL, of one package that needs no index."""
    path = tmp_path / "small-1.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("small.py", "")
        wheel.writestr("small-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.5\n")
        wheel.writestr("small-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("small-1.5.dist-info/RECORD", "")
    text = f"small @ {path.as_uri()}\n"
    monkeypatch.setattr(environments, "lock_of", lambda _: text)
    return text


@pytest.fixture(params=["pip", "uv"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either way of building."""
    if request.param == "uv" and shutil.which("uv") is None:
        pytest.skip("needs uv on the PATH")
    monkeypatch.setattr(environments, "tool", lambda: request.param)
    return str(request.param)


@pytest.mark.whole
@pytest.mark.usefixtures("tool")
def test_an_environment_is_built_again_after_a_failure_and_removed(
    folder: Path, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environments.inspect(SMALL).status == "absent"
    with monkeypatch.context() as patch:
        patch.setattr(environments, "_commands", lambda _: [["false"]])
        with pytest.raises(BadEnvironment, match=r"small could not be built: .* failed, see above"):
            environments.build(SMALL)
    assert not (folder / "small").exists()
    environments.build(SMALL)
    built = environments.inspect(SMALL)
    assert (built.status, built.versions, built.reason) == ("ready", {"small": "1.5"}, "")
    assert built.bytes > 0
    assert environments.installed(folder / "small", ["small"]) == {"small": "1.5"}
    monkeypatch.setattr(environments, "lock_of", lambda _: lock + "# newer\n")
    assert environments.inspect(SMALL).status == "outdated"
    assert environments.remove(SMALL) == built.bytes
    assert not (folder / "small").exists()
    assert environments.remove(SMALL) == 0


def test_what_a_killed_build_left_is_not_used_and_keeps_the_next_one_out_while_it_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip went on, and two of them wrote into one environment."""
    code = "from taglio.compare import environments; from tests.compare.test_environments import SMALL; "
    code += "environments.lock_of = lambda _: ''; "
    code += f"environments._commands = lambda _: [['sh', '-c', 'echo $$ > {tmp_path}/step; exec sleep 60']]; "
    code += "environments.build(SMALL)"
    running = subprocess.Popen(
        [sys.executable, "-c", code], env={**ENVIRONMENT, environments.VARIABLE: str(folder)}, cwd=ROOT
    )
    step = tmp_path / "step"
    while not (step.exists() and step.read_text().endswith("\n")):
        assert running.poll() is None
        time.sleep(0.005)
    running.kill()
    running.wait()
    assert environments.inspect(SMALL).status == "broken"
    monkeypatch.setattr(environments, "BACKENDS", {"small": "small"})
    monkeypatch.setattr(environments, "ENVIRONMENTS", (SMALL,))
    found = environments.find("small")
    assert (found.interpreter, found.reason) == (
        None, "its build did not finish: run taglio backends add small",
    )  # fmt: skip
    try:
        with pytest.raises(Busy, match="is in use by another taglio"):
            environments.build(SMALL)
    finally:
        os.kill(int(step.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: each.name)
def test_a_lock_pins_what_the_environment_must_hold(environment: Environment) -> None:
    lines = [line for line in environments.lock_of(environment).splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    versions = dict(line.partition(" ;")[0].split("==") for line in lines)
    assert environments.complaint(environment, versions) == ""
    assert environment.disk_bytes > 0


@pytest.mark.usefixtures("folder")
def test_the_commands_say_what_is_there() -> None:
    ran = taglio("backends", "list")
    assert ran.code == 0
    assert all(each.name in ran.out for each in ENVIRONMENTS)
    assert "needs 278" in ran.out
    assert [each["status"] for each in taglio("backends", "list", "--json").json()] == ["absent"] * len(ENVIRONMENTS)
    assert "torch: was not installed" in taglio("backends", "remove", "pytorch").out
    refused(taglio("backends", "add", "tvm"), "tvm is not a back end", "openvino")
