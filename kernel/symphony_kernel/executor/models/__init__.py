"""Models in Hugging Face layout: what their files say, their weights, and their network."""
