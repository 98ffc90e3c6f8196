"""Paths of the checkout."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
# Real corpora and the notebooks, if they are beside the checkout.
SHARED = ROOT.parent / "shared"
