"""What a GPU machine is asked in one call: is it right, how fast is it, what is it doing."""
