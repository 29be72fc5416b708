"""`symphony serve`: its flags, and models of the Hugging Face Hub."""
