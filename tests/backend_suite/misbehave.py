"""What a process of `pool` may do. Imports little: it is started anew for each item that ends one."""

import os
import signal
import time


def misbehave(item: str) -> str:
    if item == "hang":
        time.sleep(60)
    if item == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    return item.upper()
