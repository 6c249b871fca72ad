"""The tests: a folder for each room of the package, and helpers they share."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""
