"""The deterministic simulation: the real halves over the store's ports, in a world of one seed.

`python -m tests.simulation --seed 7` replays a seed, `--seeds 20000` runs many.
"""
