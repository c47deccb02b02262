"""The main job on a real model: compress all-MiniLM-L6-v2, reload it with plain transformers, compare.

python examples/demo.py [OUTPUT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KEEP = "0.5"
PAIRS = [
    ("A man is playing a guitar on stage.", "Someone performs music in front of an audience."),
    ("A man is playing a guitar on stage.", "The stock market fell sharply on Monday."),
]


def main() -> None:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "out/minilm-half-table")
    output.parent.mkdir(parents=True, exist_ok=True)
    command = ["compress", "demo", "--keep", KEEP, "-o", str(output), "--force"]
    print("$ ellp", *command, flush=True)
    program = [sys.executable, "-c", "from ellp.cli import main; main()"]
    subprocess.run([*program, *command], check=True)

    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    import ellp
    from ellp.bundle import open_bundle

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print(f"\nreloaded with transformers and ellp {ellp.__version__}:")
    tokenizer = AutoTokenizer.from_pretrained(output)
    dense, small = open_bundle("demo").model, AutoModel.from_pretrained(output)

    @torch.no_grad()
    def similarity(model: torch.nn.Module, pair: tuple[str, str]) -> float:
        batch = tokenizer(list(pair), padding=True, return_tensors="pt")
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
        one, other = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        return float(one @ other)

    for pair in PAIRS:
        before, after = similarity(dense, pair), similarity(small, pair)
        print(f"  {before:+.3f} -> {after:+.3f}   {pair[0]} | {pair[1]}")
    print(f"the model card is {output}/README.md")


if __name__ == "__main__":
    main()
