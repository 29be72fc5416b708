"""What tests of the worker share: guests, and a worker with a scripted gateway."""
