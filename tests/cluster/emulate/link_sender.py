"""Seconds from a message to its answer over one connection to link_sink.py, as a JSON list for each size.

python link_sender.py HOST RUNS SIZE...
"""

import json
import socket
import sys
import time

WARM_UP = 3


def main() -> None:
    connection = _connect(sys.argv[1])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = []
    for size in map(int, sys.argv[3:]):
        took = []
        for _ in range(int(sys.argv[2]) + WARM_UP):
            start = time.perf_counter()
            connection.sendall(size.to_bytes(8, "big") + bytes(size))
            connection.recv(1)
            took.append(time.perf_counter() - start)
        found.append(took[WARM_UP:])
    print(json.dumps(found))


def _connect(host: str) -> socket.socket:
    """The sink may not listen yet."""
    for _ in range(100):
        try:
            return socket.create_connection((host, 5000))
        except OSError:
            time.sleep(0.05)
    return socket.create_connection((host, 5000))


if __name__ == "__main__":
    main()
