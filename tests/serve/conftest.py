import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))

from chromium import chromium, open_page  # noqa: F401  (fixtures)
