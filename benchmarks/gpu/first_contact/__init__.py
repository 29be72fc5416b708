"""A first contact with a GPU machine that has no network and gives little time and room."""
