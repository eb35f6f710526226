"""``python -m clover`` is the command ``clover``."""

from clover.cli.main import main

if __name__ == "__main__":
    main()
