"""Clients that ask a server, each the same question over and over, a request at a time: a program, until it is ended.

    python clients.py PORT DATA.npz

Prints a line for each answer: when it was sent (Unix time), how long it took, its status, and the class or the refusal.
"""

import http.client
import json
import sys
import threading
import time

import numpy as np

CLIENTS = 4
_PAUSE_S = 0.1


def ask(port: int, image: np.ndarray) -> tuple[int, str]:
    """The status of a request, and the class of its answer."""
    given = {"name": "image", "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=150)
    try:
        connection.request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [given]}))
        reply = connection.getresponse()
        text = reply.read().decode()
    finally:
        connection.close()
    if reply.status != 200:
        return reply.status, text
    return 200, str(np.argmax(json.loads(text)["outputs"][0]["data"]))


def main(port: int, data: str) -> None:
    """Ask and tell."""
    images = np.load(data)["image"][:CLIENTS]

    def client(number: int) -> None:
        while True:
            sent_s = time.time()
            status, said = ask(port, images[number : number + 1])
            row = [number, sent_s, time.time() - sent_s, status, said]
            sys.stdout.write(f"{json.dumps(row)}\n")
            sys.stdout.flush()
            time.sleep(_PAUSE_S)

    for number in range(CLIENTS):
        threading.Thread(target=client, args=(number,)).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
