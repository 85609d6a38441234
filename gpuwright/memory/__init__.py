"""What a service takes in memory, per engine's own arithmetic. Bytes throughout."""
