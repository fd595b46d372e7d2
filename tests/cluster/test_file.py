"""Cluster files: what they say arrives in SI units, and what is wrong is refused with its key and the fix."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from taglio.cluster.devices import Cluster, Link
from taglio.cluster.file import BadCluster, load, parse, written
from taglio.errors import BadOption
from taglio.flow.placing import opened

FILE = """\
start = "camera"

[device.camera]
threads = 1
memory_mb = 64
active_watts = 4.0
energy_cap_joules = 0.5
profile = "profile.json"

[device.gateway]
never = ["Resize", "model.2*"]
int8 = false
scale = { of = "camera", factor = 0.5 }

[device.server]
threads = 4
scale = { of = "camera", factor = 0.1 }

[[link]]
from = "camera"
to = "server"
both = true
bandwidth_mbit_s = 100
latency_ms = 5
joules_per_mb = 0.25

[[link]]
from = "camera"
to = "gateway"
bandwidth_mbit_s = 400
"""


def test_units_are_converted_once() -> None:
    cluster = parse(FILE)
    assert [each.name for each in cluster.devices] == ["camera", "gateway", "server"]
    camera, gateway, server = cluster.devices
    assert (camera.threads, camera.memory_bytes, camera.active_watts) == (1, 64e6, 4.0)
    assert (camera.energy_cap_joules, camera.profile, camera.assumed) == (0.5, "profile.json", False)
    assert (gateway.memory_bytes, gateway.never, gateway.int8) == (inf, ("Resize", "model.2*"), False)
    assert (server.profile, server.assumed) == ("profile.json", True) and server.scale == pytest.approx(0.1)
    assert cluster.link("camera", "server") == Link("camera", "server", 12.5e6, 5e-3, 0.25e-6)
    assert cluster.link("server", "camera") == Link("server", "camera", 12.5e6, 5e-3, 0.25e-6)
    assert cluster.link("camera", "gateway") == Link("camera", "gateway", 50e6)
    assert cluster.link("gateway", "camera") is None
    assert cluster.link("server", "server") == Link("server", "server", inf)


def test_what_messages_take_is_read() -> None:
    cluster = parse(
        FILE.replace("active_watts = 4.0", "send_ms = 2\nreceive_ms = 3\nreceive_ms_per_mb = 12").replace(
            "latency_ms = 5", "latency_ms = 5\ngap_ms = 1"
        )
    )
    assert (cluster.devices[0].send_s, cluster.devices[0].receive_s, cluster.devices[1].send_s) == (2e-3, 3e-3, 0.0)
    assert cluster.devices[0].sending_s(1e6) == 2e-3
    assert cluster.devices[0].receiving_s(5e5) == pytest.approx(3e-3 + 6e-3)
    link = cluster.link("camera", "server")
    assert link is not None and link.gap_s == 1e-3


def test_a_device_left_out_still_lends_its_times() -> None:
    alone = parse(FILE).without("gateway")
    assert [each.name for each in alone.devices] == ["camera", "server"]
    assert alone.devices[1].profile == "profile.json" and alone.devices[1].scale == pytest.approx(0.1)
    assert all("gateway" not in (each.source, each.target) for each in alone.links)
    moved = replace(parse(FILE), start="server").without("camera")
    assert (moved.device("gateway").profile, moved.device("gateway").scale) == ("profile.json", 0.5)


def test_a_device_without_times_of_its_own_has_a_place_for_them() -> None:
    assert parse('start="a"\n[device.a]').devices[0].profile == "profiles/a.json"
    assert [each.runtime for each in parse('start="a"\n[device.a]\n[device.b]\nruntime="openvino"').devices] == [
        "", "openvino",
    ]  # fmt: skip


def test_files_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    assert load(path) == parse(FILE)
    with pytest.raises(BadCluster, match="cannot be read"):
        load(tmp_path / "nothing.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadCluster, match="UTF-8"):
        load(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("threads = 1", "thread = 1", 'device.camera: unknown key "thread": did you mean "threads"?'),
        ("threads = 1", "threads = 0", "device.camera.threads = 0: expected a whole number >= 1"),
        (
            "threads = 1",
            'runtime = "openvin"',
            'device.camera.runtime = "openvin" is not known: did you mean "openvino"?',
        ),
        ("memory_mb = 64", "memory_mb = -1", "device.camera.memory_mb = -1: expected a number >= 1e-09"),
        ("memory_mb = 64", 'memory_mb = "64"', "device.camera.memory_mb = '64': expected a number, got text in quotes"),
        ("memory_mb = 64", "memory_mb = inf", "device.camera.memory_mb = inf: expected a number <= 1000000000000.0"),
        ("latency_ms = 5", "latency_ms = 5\ngap_ms = 6", "link 1: gap_ms = 6 is more than latency_ms = 5, which"),
        ('start = "camera"', 'start = "camrea"', 'start = "camrea", no such device: did you mean "camera"?'),
        ('start = "camera"\n', "", 'has no start device, where inputs come from: write start = "camera"'),
        ("bandwidth_mbit_s = 400", "latency_ms = 1", 'link 2: has no "bandwidth_mbit_s"'),
        ("both = true", 'both = "yes"', "link 1.both = 'yes': expected true or false"),
        ('never = ["Resize", "model.2*"]', 'never = "Resize"', "device.gateway.never = 'Resize': expected a list"),
        ('of = "camera"', 'of = "camara"', 'device.gateway.scale of "camara", no such device: did you mean "camera"?'),
        ('of = "camera"', 'of = "server"', 'device.gateway.scale of "server", which has no profile of its own'),
        ('of = "camera", factor = 0.5', 'of = "camera", factor = 0', "scale.factor = 0: expected a number >= 1e-06"),
        ('profile = "profile.json"', 'profile = "p.json"\nscale = { of = "server", factor = 2.0 }', "keep one"),
        ("[device.gateway]", '[device."../x"]', "letters, digits"),
        ("memory_mb = 64", "memory_mb = = 64", "Invalid value (at line 5, column 13): not valid TOML"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key_and_the_fix(before: str, after: str, message: str) -> None:
    assert before in FILE
    text = FILE.replace(before, after, 1)
    with pytest.raises(BadCluster) as refusal:
        parse(text, "cluster.toml")
    words = str(refusal.value)
    assert message in words and words.startswith("cluster.toml: ") and "\n" not in words, words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no devices"),
        ('start = "a"\n[device.a]\n[link]\nfrom = "a"', "link: expected a list, got a table"),
        ('start = "a"\n[device]\na = 3', "expected a table"),
        ('start = "a"\n[device.a]\n[[link]]\nfrom = "a"\nto = "a"\nbandwidth_mbit_s = 1', "to itself"),
        ("a = " + "[" * 5000, "lab.toml"),
        ("a = " + "9" * 5000, "lab.toml"),
        (".".join("a" * 5000) + " = 1", "lab.toml"),
        ("[" + ".".join("a" * 5000) + "]", "lab.toml"),
    ],
)
def test_half_a_file_and_what_no_parser_takes_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(BadCluster) as refusal:
        parse(text, "lab.toml")
    assert words in str(refusal.value) and len(str(refusal.value)) < 300


def test_names_that_are_not_there_name_the_nearest() -> None:
    cluster: Cluster = parse(FILE)
    with pytest.raises(BadOption, match='did you mean "server"'):
        cluster.device("sever")
    with pytest.raises(BadOption, match="start device"):
        cluster.without("camera")


LIKE = (
    FILE
    + """
[device.second]
like = "server"
[device.third]
like = "server"
"""
)


def test_a_device_that_is_like_another_has_its_figures_and_its_links() -> None:
    cluster = parse(LIKE)
    server, second = cluster.device("server"), cluster.device("second")
    assert second == replace(server, name="second", like="server")
    measured = parse(LINKED + '[device.c]\nlike = "b"\n').device("c")
    assert (measured.profile, measured.scale, measured.assumed) == ("profiles/b.json", 1.0, True)
    for name in ("second", "third"):
        assert cluster.link("camera", name) == replace(link(cluster), target=name)
        assert cluster.link(name, "camera") is not None and cluster.link("gateway", name) is None


def test_what_is_written_reads_the_same() -> None:
    text = LIKE.replace("threads = 4", 'threads = 4\nruntime = "openvino"\nsend_ms = 2\nreceive_ms_per_mb = 12')
    cluster = parse(text)
    again = parse(written(cluster))
    assert again.devices == cluster.devices and set(again.links) == set(cluster.links)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('like = "server"', 'like = "sever"', 'did you mean "server"'),
        ('third]\nlike = "server"', 'third]\nlike = "second"', 'which is like "server"'),
        ('third]\nlike = "server"', 'third]\nthreads = 2\nlike = "server"', 'unknown key "threads"'),
    ],
)
def test_what_is_wrong_with_a_device_like_another_is_said(before: str, after: str, words: str) -> None:
    assert before in LIKE
    with pytest.raises(BadCluster, match=words):
        parse(LIKE.replace(before, after))


def link(cluster: Cluster) -> Link:
    """From the camera to the server."""
    found = cluster.link("camera", "server")
    assert found is not None
    return found


LINKED = """start = "a"
[device.a]
[device.b]
[[link]]
from = "a"
to = "b"
both = true
bandwidth_mbit_s = 8
"""


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("= 8\n", '= 8\n[[link]]\nfrom = "b"\nto = "a"\nbandwidth_mbit_s = 9\n', "links 1 and 2 both go from b to a"),
        ("[device.b]", "[device.b]\n[device.B]", 'device "b" and device "B" differ only in case'),
        ("= 8", "= 1e300", "link 1.bandwidth_mbit_s = 1e+300: expected a number <= 1000000000000.0"),
        ("= 8", "= nan", "link 1.bandwidth_mbit_s = nan: expected a number"),
        (
            "[device.b]",
            '[device.b]\nscale = { of = "c", factor = 2.0 }\n[device.c]\nlike = "a"',
            'device.b.scale of "c", which has no profile of its own: name a device that has one',
        ),
    ],
)
def test_what_contradicts_or_vanishes_is_refused(before: str, after: str, words: str) -> None:
    with pytest.raises(BadCluster, match=re.escape(words)):
        parse(LINKED.replace(before, after))


def test_files_as_editors_on_windows_write_them_are_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_bytes(b"\xef\xbb\xbf" + LINKED.replace("\n", "\r\n").encode())
    cluster, used = opened(file)
    assert load(file) == cluster == parse(used.text) == parse(LINKED)
    file.write_bytes(LINKED.replace("[device.b]", "# caf\xe9\n[device.b]").encode("latin-1"))
    with pytest.raises(BadCluster, match="line 3 is not text in UTF-8"):
        load(file)
