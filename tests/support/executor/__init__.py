"""What tests of executors share: small checkpoints, reference implementations."""
