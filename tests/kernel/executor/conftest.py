"""One thread for torch: the machine is shared, and small tensors gain nothing from two."""

import torch

torch.set_num_threads(1)
