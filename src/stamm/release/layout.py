"""Names in a released folder.

The export to transformers lies at the top, where the Hub and `from_pretrained` look for it; below
`run/` is the run folder of one arm without text of the corpus.
"""

from __future__ import annotations

CARD = "README.md"
RECORD = "release.json"
RELEASED = "released.json"
"""In the folder of an arm: its latest release."""
PARITY = "parity.json"
BOM = "bom.cdx.json"
SIGNATURE = "model.sig"
EVIDENCE = "documents"
RECEIPTS = "documents/receipts.json"
ACTIVATION = "activation"
RUN = "run"
TOP_FORMAT = "transformers"


def export_folder(target: str) -> str:
    """Folder of an export in a release, with a slash; "" for the one at the top."""
    return "" if target == TOP_FORMAT else f"export/{target}/"


def arm_folder(arm: str) -> str:
    """Folder of the arm `arm` in a release."""
    return f"{RUN}/arms/{arm}"
