"""Parse and apply changes to an emulated cluster: a link twice as fast, a device removed. Plans nothing."""

import re
from dataclasses import replace

from taglio.cluster.devices import FACTORS, LEAST_FACTOR, MOST_FACTOR, Cluster
from taglio.errors import BadOption

HOW = '"link A->B bandwidth x2", "link A->B latency x0.5", "link A->B cut", "device A x2" (its times) or "without A"'
_LINK = re.compile(r"link\s+(\S+?)\s*->\s*(\S+)\s+(?:(bandwidth|latency)\s+x\s*(\S+)|(cut))", re.IGNORECASE)
_DEVICE = re.compile(r"device\s+(\S+)\s+x\s*(\S+)", re.IGNORECASE)
_WITHOUT = re.compile(r"without\s+(\S+)", re.IGNORECASE)


def changed(cluster: Cluster, text: str) -> Cluster:
    """The cluster after the changes in `text` (see HOW; several are separated by ";"). Raises BadOption."""
    for part in text.split(";"):
        cluster = _apply(cluster, part.strip(), text)
    return cluster


def _apply(cluster: Cluster, part: str, text: str) -> Cluster:
    if match := _LINK.fullmatch(part):
        return _link(cluster, match, text)
    if match := _DEVICE.fullmatch(part):
        name, device = match[1], cluster.device(match[1])
        of, scale = device.scale_of or device.profile, device.scale_factor * _factor(match[2], text)
        return cluster.with_device(name, scale_of=of, profile=None, scale_factor=scale)
    if match := _WITHOUT.fullmatch(part):
        return cluster.without(match[1])
    raise BadOption(f'change "{text}": write {HOW}')


def _link(cluster: Cluster, match: re.Match[str], text: str) -> Cluster:
    source, target = cluster.device(match[1]).name, cluster.device(match[2]).name
    link = cluster.link(source, target)
    if link is None:
        raise BadOption(f'change "{text}": {source} and {target} are not connected in that direction')
    if match[5]:
        links = tuple(other for other in cluster.links if (other.source, other.target) != (source, target))
        return replace(cluster, links=links)
    factor = _factor(match[4], text)
    if match[3].lower() == "latency":
        latency_s = link.latency_s * factor
        return cluster.with_link(replace(link, latency_s=latency_s, gap_s=min(link.gap_s, latency_s)))
    return cluster.with_link(replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor))


def _factor(word: str, text: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not LEAST_FACTOR <= value <= MOST_FACTOR:
        raise BadOption(f'change "{text}": "x{word}" must be a factor {FACTORS}')
    return value
