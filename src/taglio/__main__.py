"""Entry point of `python -m taglio`."""

from taglio.cli import entry

if __name__ == "__main__":
    entry()
