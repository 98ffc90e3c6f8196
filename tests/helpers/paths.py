"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
# Real corpora and the notebooks, which may lie beside the checkout.
SHARED = ROOT.parent / "shared"
