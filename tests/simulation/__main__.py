from tests.simulation.cli import main

main()
