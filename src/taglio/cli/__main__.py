"""Entry point of `python -m taglio.cli`."""

from taglio.cli import entry

if __name__ == "__main__":
    entry()
