"""The roof: how fast this machine can read memory, proven by a checksum."""
