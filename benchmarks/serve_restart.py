"""Does a restart of `taglio serve` lose a request? Clients that retry, while the server is ended and started again.

python benchmarks/serve_restart.py      (.[dev,serve])
"""

import http.client
import sys
import threading
import time
from typing import Any

import numpy as np

from cases import markdown, write
from served import IMAGE, free_port, probe, raw, start, workspace
from taglio.cores import available_cores


def post(connection: http.client.HTTPConnection, name: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def restart() -> tuple[dict[str, Any], str]:
    """10,000 requests by four clients that retry, with three restarts on the way."""
    folder = workspace("probe", probe(echo=True), available_cores())
    ports = free_port(), free_port()
    servers = [start(folder, *ports)]
    total, clients = 10_000, 4
    answered, retried, wrong = [0] * clients, [0] * clients, [0] * clients
    memory: list[tuple[int, int]] = []

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
        for _ in range(total // clients):
            image = rng.standard_normal(IMAGE).astype(np.float32)
            body, headers = raw({"image": image})
            while True:
                try:
                    status, answer = post(connection, "probe", body, headers)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    status = 0
                if status == 200:
                    break
                retried[index] += 1
                time.sleep(0.05)
            answered[index] += 1
            wrong[index] += not answer.endswith((-image).tobytes())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    codes = []
    for part in range(1, 5):
        first = True
        while sum(answered) < part * total // 4 and any(thread.is_alive() for thread in threads):
            if first and sum(answered) > (part - 1) * total // 4 + 500:  # warm
                early, first = servers[-1].resident_bytes(), False
            time.sleep(0.01)
        memory.append((early, servers[-1].resident_bytes()))
        if part < 4:
            codes.append(servers[-1].stop())
            servers.append(start(folder, *ports))
    for thread in threads:
        thread.join()
    codes.append(servers[-1].stop())
    figures = {
        "answered": sum(answered), "retried": sum(retried), "wrong": sum(wrong), "codes": codes, "memory": memory,
    }  # fmt: skip
    print(figures, flush=True)
    grown = ", ".join(f"{early / 1e6:.0f} → {late / 1e6:.0f}" for early, late in memory)
    row = [str(total), str(sum(answered)), str(sum(wrong)), str(sum(retried)), str(codes), grown]
    return figures, markdown(
        ["requests", "answered", "wrong", "retries", "exit codes", "MB after 500 → at the end"], [row]
    )


def main() -> int:
    figures, table = restart()
    print(table, flush=True)
    print(f"wrote {write('serve', {'restart': figures}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
