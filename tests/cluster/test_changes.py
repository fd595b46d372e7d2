"""Changes of a cluster do what they say, and what is no change is refused."""

import pytest

from taglio.cluster.changes import changed
from taglio.cluster.file import parse
from taglio.errors import BadOption
from tests.cluster.planning.test_assemble import PAIR

CLUSTER = parse(PAIR.replace("bandwidth_mbit_s = 8\n", "bandwidth_mbit_s = 80\n"))


def test_changes_do_what_they_say() -> None:
    link, back = CLUSTER.link("near", "far"), CLUSTER.link("far", "near")
    assert link is not None
    quick = changed(CLUSTER, "link near->far bandwidth x2; link near -> far latency x0.5")
    found = quick.link("near", "far")
    assert found is not None and quick.link("far", "near") == back
    assert (found.bandwidth_bytes_per_s, found.latency_s) == (2 * link.bandwidth_bytes_per_s, 0.5 * link.latency_s)
    assert changed(CLUSTER, "link near->far cut").link("near", "far") is None
    assert [each.name for each in changed(CLUSTER, "without far").devices] == ["near"]
    slow = changed(CLUSTER, "device far x3").device("far")
    assert (slow.scale_of, slow.scale_factor, slow.assumed) == ("profiles/far.json", 3.0, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("faster", "write "),
        ("link near->fra bandwidth x2", 'did you mean "far"'),
        ("link near->far bandwidth x0", "must be a factor from"),
        ("without near", "start device"),
        ("device cloud x2", "there are near, far"),
        ("link near->near cut; link near->near bandwidth x2; without far; link near->far cut", "far"),
    ],
)
def test_what_is_no_change_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        changed(CLUSTER, text)
