"""What tests of a whole server share: its processes, their deaths, examples over HTTP."""
