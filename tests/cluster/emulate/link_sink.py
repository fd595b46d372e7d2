"""Listens on an emulated device, reads messages of a stated length, and answers each with one byte."""

import socket


def main() -> None:
    with socket.create_server(("0.0.0.0", 5000)) as listening:
        while True:
            connection, _ = listening.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while head := connection.recv(8):
                left = int.from_bytes(head, "big")
                while left:
                    left -= len(connection.recv(min(left, 1 << 20)))
                connection.sendall(b"k")


if __name__ == "__main__":
    main()
