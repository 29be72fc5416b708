"""One thread for torch: these tests share their machine, and small tensors gain nothing from two."""

import torch

torch.set_num_threads(1)
