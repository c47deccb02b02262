"""Small integer matrices and importances: full of zeros, repeats, exact orthogonality and rank deficiency."""

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def integer_tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n, d = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    row = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
    entries = draw(st.lists(row, min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    return torch.tensor(entries, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
