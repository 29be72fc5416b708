"""LoRA adapters: PEFT folders, checked and loaded, and their products on a CPU."""
