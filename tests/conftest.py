"""Small matrices are fastest on one thread: several would mostly wait for each other."""

import torch

torch.set_num_threads(1)
