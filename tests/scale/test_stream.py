"""A table on disk is factored as it is in memory, in however many parts, and by however many threads."""

import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import laws
import numpy as np
import pytest
import scale_runs
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from scale_runs import made_table, run, small_parts

import ellp
from ellp.rows import Rows, added, chances, read_rows
from ellp.scale import budget, parts, passes
from ellp.scale.parts import Part, Tree, parts_of
from ellp.scale.scan import Pruned, Scan, candidates, scanned
from ellp.scale.threads import Threads


@pytest.fixture(autouse=True)
def many_parts() -> Iterator[None]:
    before = parts.PART, parts.FAN, passes.PATIENCE
    small_parts()
    yield
    parts.PART, parts.FAN, passes.PATIENCE = before


def assert_same(found: ellp.Factors, expected: ellp.Factors, near: float = 1e-4) -> None:
    """The same matrix of low rank, evidence and ellipsoid."""
    found_product, product = (
        np.asarray(part.left, float) @ np.asarray(part.right, float) for part in (found, expected)
    )
    assert np.abs(found_product - product).max() <= near * np.abs(product).max()
    for name in ("error", "distortion", "lower", "upper", "floor"):
        ours, theirs = (getattr(part.certificate, name) for part in (found, expected))
        assert ours == pytest.approx(theirs, rel=10 * near), name
    np.testing.assert_allclose(found.sigma, expected.sigma, rtol=10 * near, atol=1e-6 * float(expected.sigma[0]))


CASES: dict[str, dict[str, Any]] = {
    "p = 1": {},
    "p = 0": {"p": 0.0},
    "p = 0.5": {"p": 0.5},
    "p = 2": {"p": 2.0},
    "p = 4": {"p": 4.0},
    "three passes": {"max_steps": 3, "tol": 0.0, "strict": False},
    "sketch": {"method": "sketch"},
    "svd": {"method": "svd"},
    "svd at p = 2": {"method": "svd", "p": 2.0},
    "importance": {"importance": np.random.default_rng(1).random(scale_runs.ROWS) * 1e200},
    "metric": {"metric": np.diag(np.linspace(1.0, 3.0, scale_runs.COLUMNS))},
    "all": {"p": 1.5, "importance": np.arange(scale_runs.ROWS) % 3, "metric": np.diag(np.linspace(1.0, 3.0, 12))},
    "full rank": {"rank": 12},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_as_in_memory(tmp_path: Path, options: dict[str, Any], dtype: str) -> None:
    table = made_table(tmp_path / "table.npy", dtype=dtype)
    chosen = {"rank": 5, "tol": 1e-3, **options}
    found = ellp.factorize(tmp_path / "table.npy", **chosen, output=tmp_path / "out.safetensors")
    assert_same(found, ellp.factorize(table, **chosen), 1e-3 if dtype == "float32" else 1e-6)
    kept = load_file(tmp_path / "out.safetensors")
    assert np.array_equal(kept["left"], found.left.numpy())
    assert np.array_equal(kept["axes"], found.axes.numpy())


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_any_unit(tmp_path: Path, scale: float) -> None:
    table = (made_table(tmp_path / "table.npy").astype(float) * scale).astype(np.float32)
    np.save(tmp_path / "table.npy", table)
    assert_same(ellp.factorize(tmp_path / "table.npy", 5), ellp.factorize(table, 5), 1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    table = torch.from_numpy(made_table(tmp_path / "a.npy")).clamp(-50, 50).to(dtype)
    save_file({"table": table}, tmp_path / "table.safetensors")
    found = ellp.factorize(tmp_path / "table.safetensors", 5, output=tmp_path / "out.safetensors")
    expected = ellp.factorize(table, 5)
    assert found.left.dtype == dtype and found.sigma.dtype == torch.float32
    assert found.certificate.error == pytest.approx(expected.certificate.error, rel=1e-3)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0])
def test_a_table_of_low_rank_and_one_of_zeros(tmp_path: Path, p: float) -> None:
    table = (laws.draw(5000, 3) @ laws.draw(3, 8, seed=1)).numpy()
    table[::7] = 0.0
    np.save(tmp_path / "table.npy", table)
    found = ellp.factorize(tmp_path / "table.npy", 3, p)
    assert np.abs(found.left.numpy() @ found.right.numpy() - table).max() < 1e-10 * np.abs(table).max()
    np.save(tmp_path / "zeros.npy", np.zeros((5000, 4)))
    assert ellp.factorize(tmp_path / "zeros.npy", 2, max(p, 1.0)).certificate.error == 0.0


def test_the_scan_draws_the_sample_that_memory_draws(tmp_path: Path) -> None:
    for name, weights in (("even", None), ("uneven", np.random.default_rng(3).random(5000))):
        table = torch.from_numpy(made_table(tmp_path / f"{name}.npy"))
        whole = read_rows(table, None if weights is None else torch.from_numpy(weights), None)
        raw = torch.ones(5000, dtype=torch.float64) if weights is None else torch.from_numpy(weights)
        tree, merge = Tree(), Pruned(candidates(600))
        for first, last in parts_of((5000, 12), torch.float32):
            part = Rows(matrix=table[first:last], weight=raw[first:last], first=first)
            tree.add(scanned(part, candidates(600), 1.0, 7, 0), merge)
        scan = Scan.of(tree.total(merge), 5000, weights is not None)
        ours, theirs = scan.sample(600, {"unit": scan.unit}), whole.sample(600, 1.0, 7)
        assert theirs.index is not None and torch.equal(ours.matrix, table[theirs.index])
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=0)
        assert scan.unit == pytest.approx(whole.unit, rel=1e-12)


def test_chances_depend_on_the_row_alone() -> None:
    whole = chances(3, 1, 0, 1000)
    for first, last in ((0, 1), (1, 2), (5, 900), (999, 1000)):
        assert torch.equal(chances(3, 1, first, last), whole[first:last])
    assert not torch.equal(chances(3, 2, 0, 1000), whole)
    assert not torch.equal(chances(4, 1, 0, 1000), whole)
    assert abs(float(whole.mean()) - 0.5) < 0.05


@pytest.mark.parametrize("threads", [Threads(1, 0), Threads(1, 1), Threads(2, 2), Threads(5, 3)])
def test_not_a_bit_depends_on_the_threads(tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    made_table(tmp_path / "table.npy")
    files = []
    for chosen in (Threads(2, 1), threads):
        monkeypatch.setattr("ellp.scale.stream.threads_for", lambda *_, chosen=chosen: chosen)
        run(tmp_path / "table.npy", tmp_path / "out.safetensors", force=True, compare=True, p=1.5)
        files.append((tmp_path / "out.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 64, 67])
def test_the_tree_is_the_same_from_parts_and_from_groups(count: int) -> None:
    """Sums of floats tell whether the order is the same."""
    sums = [(torch.tensor(value),) for value in np.random.default_rng(count).standard_normal(count)]
    one, other = Tree(), Tree()
    for part in sums:
        one.add((part[0].clone(),), added)
    for first in range(0, count, parts.FAN):
        group = [(part[0].clone(),) for part in sums[first : first + parts.FAN]]
        total = group[0]
        for part in group[1:]:
            total = added(total, part)
        other.add(total, added, len(group), 1)
    assert one.done == other.done == count
    assert float(one.total(added)[0]) == float(other.total(added)[0])


def test_parts_cover_every_row_once() -> None:
    for shape in ((1, 1), (255, 3), (256, 3), (257, 3), (5000, 12)):
        found = parts_of(shape, torch.float32)
        assert found[0].first == 0 and found[-1].last == shape[0]
        assert all(one.last == other.first for one, other in pairwise(found))
    assert isinstance(found[0], Part)


def test_no_passes_at_all_are_certified_while_writing(tmp_path: Path) -> None:
    table = made_table(tmp_path / "table.npy")
    for method in ("lewis", "sketch"):
        found = ellp.factorize(tmp_path / "table.npy", 5, method=method, max_steps=0, strict=False)
        proof = found.certificate
        assert math.sqrt(12) < proof.distortion < math.inf
        ellipsoid = ellp.Ellipsoid(found.axes.double(), found.sigma.double(), 1.0, proof.alpha, proof.beta, 1)
        laws.assert_sandwich(torch.from_numpy(table), ellipsoid, laws.slack_of(torch.float32))
        assert proof.lower <= proof.error <= proof.upper


def test_the_svd_is_measured_on_the_way(tmp_path: Path) -> None:
    table = made_table(tmp_path / "table.npy")
    for options in ({}, {"p": 1.5, "method": "sketch"}, {"p": 2.0}, {"method": "svd"}):
        found = run(tmp_path / "table.npy", tmp_path / "out", compare=True, force=True, **options)
        p = float(options.get("p", 1.0))  # type: ignore[arg-type]
        expected = ellp.factorize(table, 5, p, method="svd").certificate.error
        assert found.record["svd_error"] == pytest.approx(expected, rel=1e-4)
        assert found.record["reads"] <= 6


@pytest.mark.parametrize("options", [{"p": math.inf}, {"refine": "rows"}, {"method": "loewner"}])
def test_what_needs_the_whole_table_gets_it_or_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    table = made_table(tmp_path / "table.npy", 300)
    found = ellp.factorize(tmp_path / "table.npy", 5, **options, output=tmp_path / "out.safetensors")
    assert_same(found, ellp.factorize(table, 5, **options))
    with pytest.raises(ellp.InputError, match="memory for"):
        ellp.factorize(tmp_path / "table.npy", 5, **options, memory="1MB")


def test_a_wide_table(tmp_path: Path) -> None:
    table = laws.draw(10, 40).numpy()
    np.save(tmp_path / "wide.npy", table)
    assert_same(ellp.factorize(tmp_path / "wide.npy", 5), ellp.factorize(table, 5))


def test_too_little_memory_is_told_with_the_least_that_is_enough(tmp_path: Path) -> None:
    made_table(tmp_path / "table.npy")
    with pytest.raises(ellp.InputError, match=r"need at least \d+MB of memory for 12 columns, got 10MB") as caught:
        ellp.factorize(tmp_path / "table.npy", 5, memory="10MB")
    least = str(caught.value).split("at least ")[1].split(" ")[0]
    ellp.factorize(tmp_path / "table.npy", 5, memory=str(budget.parse_memory(least) + 20 * 10**6))


@pytest.mark.parametrize(("text", "count"), [("1GB", 10**9), ("512MiB", 2**29), ("1.5g", 1500000000), (7, 7)])
def test_amounts_of_memory(text: str | int, count: int) -> None:
    assert budget.parse_memory(text) == count


@pytest.mark.parametrize("text", ["much", "", "-1GB", "1 parsec"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(ellp.InputError, match="amount of memory"):
        budget.parse_memory(text)


def test_the_default_is_a_quarter_of_the_machine() -> None:
    assert 0 < budget.parse_memory(None) <= budget.machine_memory() // 4


LIMITED = """
import resource, sys
import ellp
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # an allocation beyond it fails
ellp.factorize(sys.argv[1], 16, memory=limit, output=sys.argv[1] + ".safetensors")
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs an operating system that limits and tells memory")
@pytest.mark.parametrize(("rows", "columns", "limit"), [(400_000, 128, 600 * 10**6), (60_000, 512, 700 * 10**6)])
def test_memory_is_bounded_by_a_real_limit(tmp_path: Path, rows: int, columns: int, limit: int) -> None:
    """200 and 120 MB of table, under a limit that the libraries alone fill by half."""
    path = tmp_path / "table.npy"
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        block = np.random.default_rng(0).standard_normal((10_000, columns)).astype(np.float32)
        for step in range(rows // 10_000):
            file.write((block * (1 + step)).tobytes())
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path), str(limit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= limit
