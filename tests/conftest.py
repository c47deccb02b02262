"""Small matrices are fastest on one thread: several would mostly wait for each other."""

import os
import tempfile

import torch

_cache = tempfile.TemporaryDirectory()  # what is measured is kept for these tests, not for the user who runs them
os.environ["ELLP_CACHE"] = _cache.name

torch.set_num_threads(1)
