"""Names a caller may choose from. Nothing heavy is imported here, so the command line can list them at once."""

from __future__ import annotations

from typing import Literal

Method = Literal["lewis", "loewner", "sketch", "svd"]
Refine = Literal["entries", "rows"]
How = Literal["auto", "codebook", "scalar", "int8", "rounding"]
