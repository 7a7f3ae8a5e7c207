"""The command line: `python -m tests.simulation --seeds 20000`."""

from tests.simulation.cli import main

if __name__ == "__main__":
    main()
