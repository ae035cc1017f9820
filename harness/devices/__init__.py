"""What this machine has: detected devices, and published figures of known ones."""
