"""Cluster files: what they say arrives in SI units, and what is wrong is refused with its line and the fix."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from taglio.cluster.changes import changed
from taglio.cluster.devices import Cluster, Link, local
from taglio.cluster.file import BadCluster, load, parse, written
from taglio.errors import BadOption

FILE = """\
start = "camera"

[device.camera]
threads = 1
memory_mb = 64
idle_watts = 1.5
active_watts = 4.0
energy_cap_joules = 0.5
profile = "profile.json"
loopback = { bandwidth_mbit_s = 8000, latency_ms = 0.1 }

[device.gateway]
never = ["Resize", "model.2*"]
int8 = false
scale = { of = "camera", factor = 0.5 }

[device.server]
threads = 4
scale = { of = "gateway", factor = 0.2 }

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

[scenario.congested]
cut = ["camera->gateway"]

[[scenario.congested.link]]
from = "camera"
to = "server"
bandwidth_mbit_s = 10

[scenario.alone]
without = ["gateway"]

[scenario.alone.device.camera]
threads = 2
"""


def test_units_are_converted_once() -> None:
    cluster = parse(FILE)
    assert [each.name for each in cluster.devices] == ["camera", "gateway", "server"]
    camera, gateway, server = cluster.devices
    assert (camera.threads, camera.memory_bytes, camera.idle_watts, camera.active_watts) == (1, 64e6, 1.5, 4.0)
    assert (camera.energy_cap_joules, camera.profile, camera.assumed) == (0.5, "profile.json", False)
    assert (gateway.memory_bytes, gateway.never, gateway.int8) == (inf, ("Resize", "model.2*"), False)
    assert (server.scale_of, server.scale_factor, server.assumed) == ("gateway", 0.2, True)
    assert cluster.link("camera", "server") == Link("camera", "server", 12.5e6, 5e-3, 0.25e-6)
    assert cluster.link("server", "camera") == Link("server", "camera", 12.5e6, 5e-3, 0.25e-6)
    assert cluster.link("camera", "gateway") == Link("camera", "gateway", 50e6)
    assert cluster.link("gateway", "camera") is None
    assert cluster.link("camera", "camera") == Link("camera", "camera", 1e9, 1e-4)
    assert cluster.link("server", "server") == Link("server", "server", inf)


def test_seconds_of_a_link_are_latency_and_bytes_over_bandwidth() -> None:
    assert Link("a", "b", 1e6, 0.02).seconds(500_000) == pytest.approx(0.52)
    assert Link("a", "a", inf).seconds(1e9) == 0.0


def test_what_messages_take_is_read() -> None:
    cluster = parse(
        FILE.replace("idle_watts = 1.5", "send_ms = 2\nreceive_ms = 3\nreceive_ms_per_mb = 12").replace(
            "latency_ms = 5", "latency_ms = 5\ngap_ms = 1"
        )
    )
    assert (cluster.devices[0].send_s, cluster.devices[0].receive_s, cluster.devices[1].send_s) == (2e-3, 3e-3, 0.0)
    assert cluster.devices[0].sending_s(1e6) == 2e-3
    assert cluster.devices[0].receiving_s(5e5) == pytest.approx(3e-3 + 6e-3)
    link = cluster.link("camera", "server")
    assert link is not None and link.gap_s == 1e-3
    quick = changed(cluster, "link camera->server latency x0.1").link("camera", "server")
    assert quick is not None and quick.gap_s == quick.latency_s == pytest.approx(5e-4)


def test_a_scenario_changes_only_what_it_names() -> None:
    base, slow = parse(FILE), parse(FILE, scenario="congested")
    assert slow.scenario == "congested"
    assert slow.link("camera", "server") == Link("camera", "server", 1.25e6, 5e-3, 0.25e-6)
    assert slow.link("server", "camera") == base.link("server", "camera")
    assert slow.link("camera", "gateway") is None
    assert slow.devices == base.devices


def test_a_device_left_out_still_lends_its_times() -> None:
    alone = parse(FILE, scenario="alone")
    assert [each.name for each in alone.devices] == ["camera", "server"]
    assert alone.devices[1].scale_of == "camera"
    assert alone.devices[1].scale_factor == pytest.approx(0.1)
    assert alone.devices[0].threads == 2 and alone.devices[0].memory_bytes == 64e6
    assert all("gateway" not in (each.source, each.target) for each in alone.links)
    moved = replace(parse(FILE), start="server").without("camera")
    assert (moved.device("gateway").scale_of, moved.device("gateway").scale_factor) == ("profile.json", 0.5)


def test_a_device_without_times_of_its_own_has_a_place_for_them() -> None:
    assert parse('start="a"\n[device.a]').devices[0].profile == "profiles/a.json"
    assert local().devices[0].profile == "profile.json"
    assert [each.runtime for each in parse('start="a"\n[device.a]\n[device.b]\nruntime="openvino"').devices] == [
        "", "openvino",
    ]  # fmt: skip


def test_files_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    assert load(path) == parse(FILE)
    assert load(path, "congested").scenario == "congested"
    with pytest.raises(BadCluster, match="cannot be read"):
        load(tmp_path / "nothing.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadCluster, match="UTF-8"):
        load(path)


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("threads = 1", "thread = 1", 4, 'unknown key "thread": did you mean "threads"?'),
        ("threads = 1", "threads = 0", 4, "give at least 1"),
        ("threads = 1", "threads = true", 4, "give at least 1"),
        ("threads = 1", 'runtime = "openvino-mixed"', 4, 'did you mean "openvino"?'),
        ("threads = 1", 'runtime = "openvin"', 4, 'runtime = "openvin" is not known: did you mean "openvino"?'),
        ("memory_mb = 64", "memory_mb = -1", 5, "give a number above 0"),
        ("memory_mb = 64", 'memory_mb = "64"', 5, "must be a number"),
        ("memory_mb = 64", "memory_mb = inf", 5, "must be a number"),
        ("idle_watts = 1.5", "idle_watts = -0.1", 6, "of at least 0"),
        ("idle_watts = 1.5", "send_ms = -1", 6, "of at least 0"),
        ("latency_ms = 5", "latency_ms = 5\ngap_ms = 6", 21, "gap_ms = 6 is more than latency_ms = 5, which"),
        ('start = "camera"', 'start = "camrea"', 1, 'did you mean "camera"?'),
        ('start = "camera"', "start = 3", 1, "in quotes"),
        ('to = "gateway"', 'to = "gatway"', 31, 'no such device: did you mean "gateway"?'),
        ("bandwidth_mbit_s = 400", "latency_ms = 1", 29, "no bandwidth_mbit_s"),
        ("bandwidth_mbit_s = 400", "bandwidth_mbits = 400", 32, 'did you mean "bandwidth_mbit_s"?'),
        ("both = true", 'both = "yes"', 24, "true or false"),
        ("int8 = false", "int8 = 0", 14, "true or false"),
        ('never = ["Resize", "model.2*"]', 'never = "Resize"', 13, "write a list"),
        ('of = "camera"', 'of = "camara"', 15, 'did you mean "camera"?'),
        ('of = "camera"', 'of = "server"', 19, "needs its own profile"),
        ('of = "camera", factor = 0.5', 'of = "camera"', 15, "write scale ="),
        ('of = "camera", factor = 0.5', 'of = "camera", factor = 0', 15, "above 0"),
        ('profile = "profile.json"', 'profile = "p.json"\nscale = { of = "server", factor = 2.0 }', 10, "keep one"),
        ('cut = ["camera->gateway"]', 'cut = ["camera->getaway"]', 35, 'did you mean "camera->gateway"?'),
        ('without = ["gateway"]', 'without = ["gatewy"]', 43, 'did you mean "gateway"?'),
        ('without = ["gateway"]', 'without = ["camera"]', 43, "start device"),
        ("[device.gateway]", '[device."../x"]', 12, "letters, digits"),
        ("memory_mb = 64", "memory_mb = = 64", 5, "not valid TOML"),
        ("[scenario.alone]", "[scenaro.alone]", 42, 'did you mean "scenario"?'),
    ],
)
def test_what_is_wrong_is_refused_with_its_line_and_the_fix(before: str, after: str, line: int, words: str) -> None:
    text = FILE.replace(before, after, 1)
    text = text.replace("[scenario.alone.", "[scenaro.alone.") if before == "[scenario.alone]" else text
    with pytest.raises(BadCluster) as refusal:
        parse(text, "cluster.toml")
    message = str(refusal.value)
    assert words in message and message.startswith(f"cluster.toml:{line}:"), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no devices"),
        ('start = "a"\n[device.a]\n[link]\nfrom = "a"', "two brackets"),
        ("[device.a]", 'write start = "a"'),
        ('device = 3\nstart = "a"', "[device.NAME]"),
        ('start = "a"\n[device]\na = 3', "must be a table"),
        ('start = "a"\n[device.a]\n[[link]]\nfrom = "a"\nto = "a"\nbandwidth_mbit_s = 1', "loopback"),
        ('start = "a"\n[device.a]\n[[link]]\nto = "a"', 'no "from"'),
    ],
)
def test_half_a_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadCluster) as refusal:
        parse(text, "cluster.toml")
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = " + "9" * 5000, ".".join("a" * 5000) + " = 1", "[" + ".".join("a" * 5000) + "]"]
)
def test_what_no_parser_takes_is_one_line(text: str) -> None:
    with pytest.raises(BadCluster) as raised:
        parse(text, "lab.toml")
    assert str(raised.value).startswith("lab.toml")
    assert len(str(raised.value)) < 300


def test_a_device_is_no_cluster_file() -> None:
    with pytest.raises(BadCluster, match="/dev/zero: cannot be read \\(not a regular file\\)"):
        load(Path("/dev/zero"))


def test_names_that_are_not_there_name_the_nearest() -> None:
    cluster: Cluster = parse(FILE)
    with pytest.raises(BadOption, match='did you mean "server"'):
        cluster.device("sever")
    with pytest.raises(BadCluster, match='no scenario "conjested": did you mean "congested"'):
        parse(FILE, scenario="conjested")
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
    assert replace(second, name="server", scale_of="gateway", scale_factor=0.2, like="") == server
    assert (second.scale_of, second.scale_factor, second.like, second.assumed) == ("server", 1.0, "server", True)
    for name in ("second", "third"):
        assert cluster.link("camera", name) == replace(link(cluster), target=name)
        assert cluster.link(name, "camera") is not None and cluster.link("gateway", name) is None
    congested = parse(LIKE, scenario="congested")
    assert congested.link("camera", "second") == replace(link(congested), target="second")


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
    ("text", "words"),
    [
        (
            LINKED + '[[link]]\nfrom = "b"\nto = "a"\nbandwidth_mbit_s = 9\n',
            r":9: link from b to a is given twice.*line 4",
        ),
        (
            LINKED.replace("[device.b]", "[device.b]\n[device.B]"),
            r':4: device "B" and device "b" differ only in case|:3:',
        ),
        (LINKED.replace("= 8", "= 1e-300"), r":8: .* give a number from"),
        (LINKED.replace("= 8", "= 1e300"), r":8: .* give a number from"),
        (LINKED.replace("= 8", "= 0"), r":8: .* above 0"),
        (LINKED.replace("= 8", "= nan"), r":8: .* must be a number"),
        (LINKED.replace("[device.b]", '[device.b]\nscale = { of = "a", factor = 1e-300 }'), r":4: .*"),
        (
            LINKED.replace("[device.b]", '[device.b]\nscale = { of = "a", factor = 1e-7 }'),
            r":4: .* a factor from 1e-06",
        ),
        (
            LINKED.replace(
                "[device.b]",
                '[device.b]\nscale = { of = "c", factor = 1e-4 }\n[device.c]\nscale = { of = "a", factor = 1e-4 }',
            ),
            r":4: .* scaled by 1e-08 in all",
        ),
    ],
)
def test_what_contradicts_or_vanishes_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(BadCluster, match=words):
        parse(text)


def test_a_scenario_may_change_a_link_once() -> None:
    change = '[[scenario.slow.link]]\nfrom = "a"\nto = "b"\nbandwidth_mbit_s = 1\n'
    link = parse(LINKED + change, scenario="slow").link("a", "b")
    assert link is not None and link.bandwidth_bytes_per_s == 125_000
    with pytest.raises(BadCluster, match=":13: link from a to b is given twice, first in line 9"):
        parse(LINKED + change + change)


def test_files_as_editors_on_windows_write_them_are_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_bytes(b"\xef\xbb\xbf" + LINKED.replace("\n", "\r\n").encode())
    assert load(file) == parse(LINKED)
    file.write_bytes(LINKED.replace("[device.b]", "# caf\xe9\n[device.b]").encode("latin-1"))
    with pytest.raises(BadCluster, match=":3: is not text in UTF-8"):
        load(file)
